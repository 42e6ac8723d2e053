"""What runs share: network, images and diagnosis, from memory, from the store's cache, or made now."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repairability._torch import state_digest
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, HELD_OUT, CalibrationSet
from repairability.data import Data, load_data
from repairability.diagnostics import Diagnosis
from repairability.evaluation import Metrics, evaluate
from repairability.experiments.cache import cached, cached_all, key_of, pack_diagnosis, unpack_diagnosis
from repairability.experiments.spec import FIT_VERSION, RunSpec
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


@dataclass(frozen=True)
class Job:
    """A run and where things lie: nothing here but the spec decides its result."""

    run_id: str
    spec: RunSpec
    weights: str | None  # the file, or a word that create_model knows
    data: str
    root: str = "data"
    store: str | None = None  # for the cache
    device: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "spec": self.spec.to_dict()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Job:
        return cls(**{**content, "spec": RunSpec.read(content["spec"])})


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
def _data(name: str, root: str, image_size: int | None) -> Data:
    return load_data(name, root=root, image_size=image_size)


@lru_cache(maxsize=2)
def _network(
    model: str, weights: str | None, num_classes: int | None, seed: int, data: str, root: str, device: str
) -> nn.Module:
    if weights == TRAINED:
        return digits_network(_data(data, root, None)).to(device)
    return create_model(model, num_classes=num_classes, weights=weights, seed=seed).to(device)


@lru_cache(maxsize=2)
def _digest(model: nn.Module) -> str:
    return state_digest(model)


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


@dataclass(frozen=True)
class Shared:
    """Network, images and diagnosis of a job: from memory, from the store's cache, or made now."""

    job: Job
    stages: Stages

    @property
    def store(self) -> Store | None:
        return None if self.job.store is None else Store(Path(self.job.store))

    @cached_property
    def data(self) -> Data:
        with self.stages("load"):
            return _data(self.job.data, self.job.root, self.job.spec.image_size)

    @cached_property
    def model(self) -> nn.Module:
        spec = self.job.spec
        seed = spec.seed if self.job.weights is None else 0
        with self.stages("load"):
            return _network(
                spec.model, self.job.weights, spec.num_classes, seed, self.job.data, self.job.root, self.job.device
            )

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
            return unpack_diagnosis(cached(self.store, "diagnosis", key, measure)[0])

    def metrics(self, model: nn.Module, stage: str = "evaluate") -> Metrics:
        with self.stages("load"):
            batches = _test_batches(self.data, self.job.spec.test_images)
        with self.stages(stage):
            given = batches or self.data.test.batches(BATCH, self.job.spec.test_images)
            return evaluate(self.finished(model), given)

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
        return {f"{name}_top1": json.loads(found) for name, found in cached_all(self.store, entries).items()}
