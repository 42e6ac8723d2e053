"""What runs share: network, images and diagnosis, from memory, from the store's cache, or made now."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from repairability._torch import state_digest
from repairability.algebra.sums import OutputMoments
from repairability.calibration import HELD_OUT, CalibrationSet, images_for
from repairability.data import Data, load_data
from repairability.diagnostics import Diagnosis
from repairability.errors import PlaceError
from repairability.evaluation import Metrics, evaluate
from repairability.experiments.files import file_hash
from repairability.experiments.spec import FIT_VERSION, PAPER_LAYERS, Job, RunSpec
from repairability.experiments.store import Store
from repairability.models import create_model
from repairability.network.discover import prunable_layers
from repairability.network.folding import for_inference
from repairability.network.layers import Layers
from repairability.provenance import timed
from repairability.pruning import AUTO, measurement_for
from repairability.repairs import recalibrated
from repairability.training import TRAINED, digits_network

BATCH = 250
_KEPT = 2**30
"""Test images stay in memory, ready for the network, up to so many bytes."""

_digest = lru_cache(maxsize=2)(state_digest)


@lru_cache(maxsize=2)
def _data(name: str, root: str, image_size: int | None, content: str | None) -> Data:
    data = load_data(name, root=root, image_size=image_size)
    _check_content(name, data.fingerprint if content else None, content)
    return data


@lru_cache(maxsize=2)
def _network(
    model: str,
    weights: str | None,
    num_classes: int | None,
    seed: int,
    data: str,
    root: str,
    device: str,
    content: str | None,
) -> nn.Module:
    if weights == TRAINED:
        return digits_network(_data(data, root, None, None)).to(device)
    network = create_model(model, num_classes=num_classes, weights=weights, seed=seed)
    _check_content(str(weights), file_hash(str(weights)) if content else None, content)
    return network.to(device)


def _check_content(name: str, found: str | None, wanted: str | None) -> None:
    """What was loaded must be what the run's id was made of: the file may have changed meanwhile."""
    if found != wanted:
        raise PlaceError(f"{name} changed after the run got its id; sweep again")


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
    return CalibrationSet(data.unlabeled(most, seed), count=count)


def pack_diagnosis(diagnosis: Diagnosis) -> bytes:
    """The curves as JSON, the dense statistics as tensors."""
    statistics = {
        layer: (moments.mean.clone(), moments.var.clone(), moments.count)  # clones: a view is saved with all it views
        for layer, moments in (diagnosis.statistics or {}).items()
    }
    file = io.BytesIO()
    parts = {"diagnosis": diagnosis.to_json(), "statistics": statistics, "sums": diagnosis.state}
    torch.save(parts, file)
    return file.getvalue()


def unpack_diagnosis(content: bytes) -> Diagnosis:
    parts = torch.load(io.BytesIO(content), weights_only=True)
    statistics = {layer: OutputMoments(*moments) for layer, moments in parts["statistics"].items()}
    return replace(Diagnosis.from_json(parts["diagnosis"]), statistics=statistics, state=parts.get("sums"))


def key_of(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Shared:
    """Network, images and diagnosis of a job: from memory, the store's cache, or made now; and seconds by stage."""

    job: Job
    seconds: dict[str, float] = field(default_factory=dict)

    @cached_property
    def spec(self) -> RunSpec:
        return self.job.spec

    @cached_property
    def store(self) -> Store | None:
        return None if self.job.store is None else Store(self.job.store)

    def cached(self, kind: str, key: str, compute: Callable[[], bytes]) -> bytes:
        return compute() if self.store is None else self.store.cached(kind, key, compute)

    @cached_property
    def data(self) -> Data:
        with timed(self.seconds, "load"):
            return _data(self.job.data, self.job.root, self.spec.image_size, self.job.data_hash)

    @cached_property
    def model(self) -> nn.Module:
        job, spec = self.job, self.spec
        seed = spec.seed if job.weights is None else 0
        with timed(self.seconds, "load"):
            about = (spec.model, job.weights, spec.num_classes, seed, job.data, job.root, job.device)
            return _network(*about, job.weights_hash)

    def contents(self) -> dict[str, str]:
        """Hashes of the dense weights and of the images, whatever their files are called."""
        return {"weights": _digest(self.model), "data": self.data.fingerprint}

    @cached_property
    def layers(self) -> Layers:
        return prunable_layers(self.model, **PAPER_LAYERS)

    @cached_property
    def calibration(self) -> CalibrationSet:
        spec, train = self.spec, len(self.data.train)
        judging = {"prune": spec.rule == AUTO, "detect": spec.method == "agreement"}[spec.task]
        most = images_for(spec.count, HELD_OUT if judging else 0)
        left = max(spec.count, train - spec.held_out)  # a small data set must do for both
        with timed(self.seconds, "load"):
            return calibration_images(self.data, spec.seed, spec.count, min(most, left, train))

    def diagnosis(self) -> Diagnosis | None:
        """The curves that the spec's recipe needs, with the dense statistics; None where its rule works on none, or
        where it is chosen among rules that measure for themselves.
        """
        spec = self.spec
        wanted = None if spec.recipe is None else measurement_for(spec.recipe, [spec.sparsity], spec.config)
        if wanted is None:
            return None

        def measure() -> bytes:
            return pack_diagnosis(wanted.diagnose(self.model, self.calibration, self.layers))

        with timed(self.seconds, "diagnose"):
            version = [FIT_VERSION] if wanted.repair.fit is not None else []
            key = key_of(_digest(self.model), self.calibration.fingerprint, wanted.key, spec.threads, *version)
            return unpack_diagnosis(self.cached("curves", key, measure))

    def metrics(self, model: nn.Module, stage: str = "evaluate") -> Metrics:
        with timed(self.seconds, "load"):
            batches = _test_batches(self.data, self.spec.test_images)
        with timed(self.seconds, stage):
            return evaluate(self.finished(model), batches or self.data.test.batches(BATCH, self.spec.test_images))

    def finished(self, model: nn.Module) -> nn.Module:
        """A copy for evaluation alone: as fast as it goes, in the spec's precision. Repairs are always in full."""
        first = self.data.test.images(range(min(8, len(self.data.test))))
        return for_inference(model, first).to(getattr(torch, self.spec.precision))

    def dense(self) -> dict[str, float]:
        """Test accuracy of the dense network, as it is and with BatchNorm recalibrated on this draw of images."""
        spec, draw = self.spec, self.calibration.fingerprint
        about = (_digest(self.model), self.data.fingerprint, spec.test_images, spec.threads, spec.precision)
        keys = {"dense": key_of(*about), "dense_bn": key_of(*about, draw)}

        def top1(kind: str) -> bytes:
            with timed(self.seconds, "dense"):
                network = self.model if kind == "dense" else recalibrated(self.model, self.calibration)
            return json.dumps(self.metrics(network, "dense").top1).encode()

        # what another process computes just now comes last
        order = sorted(keys, key=lambda kind: self.store is not None and self.store.busy(kind, keys[kind]))
        return {f"{kind}_top1": json.loads(self.cached(kind, keys[kind], partial(top1, kind))) for kind in order}
