"""One run: a job (plain dict) in, a record (plain dict) out."""

from __future__ import annotations

import resource
import socket
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repairability._torch import threads
from repairability.allocation import Allocation
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, HELD_OUT
from repairability.data import Data
from repairability.detect import find_transition
from repairability.evaluation import agreement_of_logits, logits_of
from repairability.experiments.shared import BATCH, Job, Shared, Stages, calibration_images
from repairability.experiments.store import Record
from repairability.provenance import provenance
from repairability.pruning import Recipe, measurement_for, prune
from repairability.transition import objective, sparsities_per_layer


def run_job(content: dict[str, Any]) -> dict[str, Any]:
    """Run one job; an error of any kind becomes a failed record."""
    job = Job.from_dict(content)
    stages = Stages()
    _forget_peak_memory()
    status, result, error = "done", {}, ""
    try:
        with threads(job.spec.threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of BatchNorm cycling and the like; the record says what was done
            result = _TASKS[job.spec.task](job, stages)
    except Exception as problem:
        status, error = "failed", f"{type(problem).__name__}: {problem}\n{traceback.format_exc(limit=-3)}"
    about = {
        **provenance(),
        "host": socket.gethostname(),
        "threads": job.spec.threads,
        "seconds": stages.seconds,
        "peak_memory_mb": _peak_memory(),
    }
    record = Record(job.run_id, job.spec, status, result, error, about)
    return record.to_dict()


def _prune(job: Job, stages: Stages) -> dict[str, Any]:
    spec, shared = job.spec, Shared(job, stages)
    diagnosis = shared.diagnosis()
    result = prune(
        shared.model,
        shared.calibration,
        sparsity=spec.sparsity,
        rule=spec.rule,
        score=spec.score,
        repair=spec.repair,
        curves=diagnosis,
        config=spec.config,
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
        **({"rule": plan.rule, "trials": [asdict(x) for x in result.trials]} if result.trials else {}),
    }


def _objective(shared: Shared, plan: Allocation) -> float:
    """J, strict: rr measured at the allocation's own sparsities, conditioned on CR+BN."""
    config = replace(shared.job.spec.config, grid=sparsities_per_layer([plan], {}))
    wanted = measurement_for(Recipe("rr"), [plan.sparsity], config)
    assert wanted is not None, "rr works on curves"
    return objective(wanted.diagnose(shared.model, shared.calibration, shared.layers).rr, plan)


def _agreement(shared: Shared, model: nn.Module) -> dict[str, Any]:
    """With the dense network, on unlabeled training images after those of the calibration."""
    spec, used = shared.job.spec, len(shared.calibration)
    batches, theirs = _held_out(shared.model, shared.data, used, spec.held_out, spec.seed)
    return agreement_of_logits(zip(theirs, logits_of(shared.finished(model), batches), strict=True)).to_dict()


@lru_cache(maxsize=1)
def _held_out(model: nn.Module, data: Data, used: int, count: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """The images, and what the dense network says of them."""
    images = data.unlabeled(used + count, seed)[used:].contiguous(memory_format=torch.channels_last)
    batches = list(images.split(BATCH))  # type: ignore[no-untyped-call]
    return batches, logits_of(model, batches)


def _detect(job: Job, stages: Stages) -> dict[str, Any]:
    spec, shared = job.spec, Shared(job, stages)
    most = spec.count + BN_BATCHES * BN_BATCH_SIZE + (HELD_OUT if spec.method == "agreement" else 0)
    images = calibration_images(shared.data, spec.seed, spec.count, most)
    model = shared.model
    with stages("detect"):
        found = find_transition(
            model,
            images,
            sparsities=spec.sweep,
            method=spec.method,
            null=spec.null,
            config=spec.config,
        )
    return {"transition": found.to_dict(), "fingerprint": images.fingerprint}


_TASKS: dict[str, Callable[[Job, Stages], dict[str, Any]]] = {"prune": _prune, "detect": _detect}


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
