"""One run: a job (plain dict) in, a record (plain dict) out; what jobs share is loaded and measured once."""

from __future__ import annotations

import json
import resource
import socket
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repairability._torch import copy_of
from repairability.allocation import Allocation
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, CalibrationSet
from repairability.data import Data, load_data
from repairability.detect import find_transition
from repairability.detect.joint import HELD_OUT
from repairability.diagnostics import Diagnosis, diagnose
from repairability.evaluation import Metrics, agreement_of_logits, evaluate, logits_of
from repairability.experiments.cache import cached, key_of, pack_diagnosis, state_digest, unpack_diagnosis
from repairability.experiments.spec import RunSpec
from repairability.experiments.store import Record, Store
from repairability.inference import for_inference
from repairability.layers import Layers, prunable_layers
from repairability.models import create_model
from repairability.pipeline import PruneConfig, grid_for, needs_curves, prune
from repairability.provenance import provenance
from repairability.repair import BatchNormRepair
from repairability.training import digits_network
from repairability.transition import objective, sparsities_per_layer

TRAINED = "trained"
"""As weights: the digits network, trained on the spot and kept in the user's cache."""

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


def run_job(content: dict[str, Any]) -> dict[str, Any]:
    """Run one job; an error of any kind becomes a failed record."""
    job = Job.from_dict(content)
    stages = Stages()
    threads = torch.get_num_threads()
    torch.set_num_threads(job.spec.threads)
    _forget_peak_memory()
    status, result, error = "done", {}, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of BatchNorm cycling and the like; the record says what was done
            result = _TASKS[job.spec.task](job, stages)
    except Exception as problem:
        status, error = "failed", f"{type(problem).__name__}: {problem}\n{traceback.format_exc(limit=-3)}"
    finally:
        torch.set_num_threads(threads)
    about = {
        **provenance(),
        "host": socket.gethostname(),
        "threads": job.spec.threads,
        "seconds": stages.seconds,
        "peak_memory_mb": _peak_memory(),
    }
    record = Record(job.run_id, job.spec, status, result, error, about)
    return record.to_dict()


@dataclass
class Stages:
    """Seconds per stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - start, 4)


# --- what runs share ----------------------------------------------------------------------------------------------


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
def _calibration(data: Data, seed: int, count: int, most: int) -> CalibrationSet:
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
            return _calibration(self.data, spec.seed, spec.count, spec.count + BN_BATCHES * BN_BATCH_SIZE)

    def diagnosis(self) -> Diagnosis:
        """With the dense statistics that any repair needs. A rule that needs no curves takes what the others measured;
        its own repair may be one of which rr knows nothing.
        """
        spec = self.job.spec
        repair = spec.conditioned_on or spec.repair
        if not needs_curves(spec.rule, spec.options) and not repair.startswith("cr"):
            repair = "cr+bn"
        grid = grid_for([spec.sparsity]) if spec.grid == "auto" else spec.grid

        def measure() -> bytes:
            return pack_diagnosis(
                diagnose(
                    self.model, self.calibration, grid=grid, repair=repair, observe=spec.observe, layers=self.layers
                )
            )

        with self.stages("diagnose"):
            key = key_of(_digest(self.model), self.calibration.fingerprint, grid, repair, spec.observe, spec.threads)
            return unpack_diagnosis(cached(self.store, "diagnosis", key, measure)[0])

    def metrics(self, model: nn.Module, stage: str = "evaluate") -> Metrics:
        with self.stages("load"):
            batches = _test_batches(self.data, self.job.spec.test_images)
        with self.stages(stage):
            given = batches or self.data.test.batches(BATCH, self.job.spec.test_images)
            first = self.data.test.images(range(min(8, len(self.data.test))))
            return evaluate(for_inference(model, first), given)

    def dense(self) -> dict[str, float]:
        """Test accuracy of the dense network, as it is and with BatchNorm recalibrated on this draw of images."""

        def as_it_is() -> bytes:
            return json.dumps(self.metrics(self.model, "dense").top1).encode()

        def recalibrated() -> bytes:
            copy = copy_of(self.model)
            with self.stages("dense"):
                BatchNormRepair()(copy, self.layers, {}, self.calibration)
            return json.dumps(self.metrics(copy, "dense").top1).encode()

        about = (_digest(self.model), self.data.fingerprint, self.job.spec.test_images, self.job.spec.threads)
        drawn = key_of(*about, self.calibration.fingerprint)
        return {
            "dense_top1": json.loads(cached(self.store, "dense", key_of(*about), as_it_is)[0]),
            "dense_bn_top1": json.loads(cached(self.store, "dense_bn", drawn, recalibrated)[0]),
        }


# --- the two tasks ------------------------------------------------------------------------------------------------


def _prune(job: Job, stages: Stages) -> dict[str, Any]:
    spec, shared = job.spec, Shared(job, stages)
    diagnosis = shared.diagnosis()
    result = prune(
        shared.model,
        shared.calibration,
        sparsity=spec.sparsity,
        rule=spec.rule,
        repair=spec.repair,
        curves=diagnosis,
        config=PruneConfig(observe=spec.observe, options=spec.options, count=spec.count),
    )
    for stage, seconds in result.timings.items():
        stages.seconds[stage] = round(seconds, 4)
    metrics = shared.metrics(result.model)
    plan = result.allocation
    with stages("objective"):
        value = _objective(shared, plan) if spec.objective else None
    with stages("agreement"):
        similar = _agreement(shared, result.model) if spec.held_out else None
    return {
        "achieved": plan.sparsity,
        "global_sparsity": plan.global_sparsity,
        "top1": metrics.top1,
        "top5": metrics.top5,
        "loss": metrics.loss,
        "n": metrics.n,
        **shared.dense(),
        "objective": value,
        "agreement": similar,
        "allocation": dict(plan),
        "totals": dict(plan.totals),
        "n_all": plan.n_all,
        "projections": [layer.name for layer in shared.layers if layer.projection],
        "fingerprint": result.fingerprint,
    }


def _objective(shared: Shared, plan: Allocation) -> float:
    """J, strict: rr measured at the allocation's own sparsities, conditioned on CR+BN."""
    grid = sparsities_per_layer([plan], {})
    spec = shared.job.spec
    found = diagnose(
        shared.model,
        shared.calibration,
        grid=grid,
        repair=spec.conditioned_on or "cr+bn",
        observe=spec.observe,
        layers=shared.layers,
    )
    return objective(found.rr, plan)


def _agreement(shared: Shared, model: nn.Module) -> dict[str, Any]:
    """With the dense network, on unlabeled training images after those of the calibration."""
    spec, used = shared.job.spec, len(shared.calibration)
    images = shared.data.unlabeled(used + spec.held_out, spec.seed)[used:]
    batches = images.split(BATCH)  # type: ignore[no-untyped-call]
    theirs = _dense_logits(shared.model, shared.data, used, spec.held_out, spec.seed)
    return agreement_of_logits(zip(theirs, logits_of(model, batches), strict=True)).to_dict()


@lru_cache(maxsize=1)
def _dense_logits(model: nn.Module, data: Data, used: int, held_out: int, seed: int) -> list[Tensor]:
    return logits_of(model, data.unlabeled(used + held_out, seed)[used:].split(BATCH))  # type: ignore[no-untyped-call]


def _detect(job: Job, stages: Stages) -> dict[str, Any]:
    spec, shared = job.spec, Shared(job, stages)
    most = spec.count + BN_BATCHES * BN_BATCH_SIZE + (HELD_OUT if spec.method == "agreement" else 0)
    images = _calibration(shared.data, spec.seed, spec.count, most)
    model = shared.model
    with stages("detect"):
        found = find_transition(
            model,
            images,
            sparsities=spec.sweep,
            method=spec.method,
            null=spec.null,
            config=PruneConfig(observe=spec.observe, conditioned_on=spec.conditioned_on, count=spec.count),
        )
    return {"transition": found.to_dict(), "fingerprint": images.fingerprint}


_TASKS: dict[str, Callable[[Job, Stages], dict[str, Any]]] = {"prune": _prune, "detect": _detect}


# --- memory -------------------------------------------------------------------------------------------------------


def _forget_peak_memory() -> None:
    """Linux forgets a process's peak when asked; elsewhere the peak is that of all runs so far."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory() -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024, 1)
    except (OSError, StopIteration):
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
