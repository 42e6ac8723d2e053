"""What runs share: network, images and diagnosis, from memory, from the store's cache, or made now."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from repairability._torch import state_digest
from repairability.algebra.sums import OutputMoments
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, HELD_OUT, CalibrationSet
from repairability.data import Data, load_data
from repairability.diagnostics import Diagnosis
from repairability.evaluation import Metrics, evaluate
from repairability.experiments.spec import FIT_VERSION, Job
from repairability.experiments.store import Store
from repairability.models import create_model
from repairability.network.folding import for_inference
from repairability.network.layers import Layers, prunable_layers
from repairability.pruning import AUTO, measurement_for
from repairability.repairs import recalibrated
from repairability.training import TRAINED, digits_network

BATCH = 250
_KEPT = 2**30
"""Test images stay in memory, ready for the network, up to so many bytes."""

_data = lru_cache(maxsize=2)(load_data)
_digest = lru_cache(maxsize=2)(state_digest)


@dataclass
class Stages:
    """Seconds per stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - start, 4)


@lru_cache(maxsize=2)
def _network(
    model: str, weights: str | None, num_classes: int | None, seed: int, data: str, root: str, device: str
) -> nn.Module:
    if weights == TRAINED:
        return digits_network(_data(data, root=root)).to(device)
    return create_model(model, num_classes=num_classes, weights=weights, seed=seed).to(device)


@lru_cache(maxsize=1)
def _test_batches(data: Data, limit: int | None) -> list[tuple[Tensor, Tensor]] | None:
    """The test images as the network wants them, where they fit."""
    size = data.test.images([0]).numel() * 4 * min(limit or len(data.test), len(data.test))
    if size > _KEPT:
        return None
    return [
        (images.contiguous(memory_format=torch.channels_last), labels)
        for images, labels in data.test.batches(BATCH, limit)
    ]


@lru_cache(maxsize=2)
def calibration_images(data: Data, seed: int, count: int, most: int) -> CalibrationSet:
    return CalibrationSet(data.unlabeled(min(most, len(data.train)), seed), count=count)


def pack_diagnosis(diagnosis: Diagnosis) -> bytes:
    """The curves as JSON, the dense statistics as tensors."""
    statistics = {
        layer: (moments.mean.clone(), moments.var.clone(), moments.count)  # clones: a view is saved with all it views
        for layer, moments in (diagnosis.statistics or {}).items()
    }
    file = io.BytesIO()
    torch.save({"diagnosis": diagnosis.to_json(), "statistics": statistics}, file)
    return file.getvalue()


def unpack_diagnosis(content: bytes) -> Diagnosis:
    parts = torch.load(io.BytesIO(content), weights_only=True)
    statistics = {layer: OutputMoments(*moments) for layer, moments in parts["statistics"].items()}
    return replace(Diagnosis.from_json(parts["diagnosis"]), statistics=statistics)


def key_of(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Shared:
    """Network, images and diagnosis of a job: from memory, from the store's cache, or made now."""

    job: Job
    stages: Stages

    @property
    def store(self) -> Store | None:
        return None if self.job.store is None else Store(self.job.store)

    def cached(self, kind: str, key: str, compute: Callable[[], bytes]) -> bytes:
        return compute() if self.store is None else self.store.cached(kind, key, compute)

    @cached_property
    def data(self) -> Data:
        with self.stages("load"):
            return _data(self.job.data, root=self.job.root, image_size=self.job.spec.image_size)

    @cached_property
    def model(self) -> nn.Module:
        job, spec = self.job, self.job.spec
        seed = spec.seed if job.weights is None else 0
        with self.stages("load"):
            return _network(spec.model, job.weights, spec.num_classes, seed, job.data, job.root, job.device)

    @cached_property
    def layers(self) -> Layers:
        return prunable_layers(self.model)

    @cached_property
    def calibration(self) -> CalibrationSet:
        spec = self.job.spec
        with self.stages("load"):
            left = max(spec.count, len(self.data.train) - spec.held_out)  # a small data set must do for both
            judging = HELD_OUT if spec.rule == AUTO else 0
            most = min(spec.count + BN_BATCHES * BN_BATCH_SIZE + judging, left)
            return calibration_images(self.data, spec.seed, spec.count, most)

    def diagnosis(self) -> Diagnosis | None:
        """The curves that the spec's recipe needs, with the dense statistics; None where its rule works on none, or
        where it is chosen among rules that measure for themselves.
        """
        spec = self.job.spec
        wanted = None if spec.rule == AUTO else measurement_for(spec.recipe, [spec.sparsity], spec.config)
        if wanted is None:
            return None

        def measure() -> bytes:
            return pack_diagnosis(wanted.diagnose(self.model, self.calibration, self.layers))

        with self.stages("diagnose"):
            version = [FIT_VERSION] if wanted.repair.fit is not None else []
            key = key_of(_digest(self.model), self.calibration.fingerprint, wanted.key, spec.threads, *version)
            return unpack_diagnosis(self.cached("curves", key, measure))

    def metrics(self, model: nn.Module, stage: str = "evaluate") -> Metrics:
        with self.stages("load"):
            batches = _test_batches(self.data, self.job.spec.test_images)
        with self.stages(stage):
            return evaluate(self.finished(model), batches or self.data.test.batches(BATCH, self.job.spec.test_images))

    def finished(self, model: nn.Module) -> nn.Module:
        """A copy for evaluation alone: as fast as it goes, in the spec's precision. Repairs are always in full."""
        first = self.data.test.images(range(min(8, len(self.data.test))))
        return for_inference(model, first).to(getattr(torch, self.job.spec.precision))

    def dense(self) -> dict[str, float]:
        """Test accuracy of the dense network, as it is and with BatchNorm recalibrated on this draw of images."""

        def as_it_is() -> bytes:
            return json.dumps(self.metrics(self.model, "dense").top1).encode()

        def after_bn() -> bytes:
            with self.stages("dense"):
                copy = recalibrated(self.model, self.calibration)
            return json.dumps(self.metrics(copy, "dense").top1).encode()

        spec = self.job.spec
        about = (_digest(self.model), self.data.fingerprint, spec.test_images, spec.threads, spec.precision)
        drawn = key_of(*about, self.calibration.fingerprint)
        entries = {"dense": (key_of(*about), as_it_is), "dense_bn": (drawn, after_bn)}
        # what another process computes just now comes last
        order = sorted(entries, key=lambda kind: self.store is not None and self.store.busy(kind, entries[kind][0]))
        return {f"{kind}_top1": json.loads(self.cached(kind, *entries[kind])) for kind in order}
