"""One run: a job (plain dict) in, a record (plain dict) out."""

from __future__ import annotations

import socket
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from repairability._torch import threads
from repairability.allocation import Allocation
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, HELD_OUT
from repairability.data import Data
from repairability.detect import find_transition
from repairability.evaluation import agreement_of_logits, logits_of
from repairability.experiments.shared import BATCH, Shared, Stages, calibration_images
from repairability.experiments.spec import Job, read_as
from repairability.experiments.store import Record
from repairability.provenance import forget_peak_memory, peak_memory, provenance
from repairability.pruning import Recipe, measurement_for, prune
from repairability.transition import objective


def run_job(content: dict[str, Any]) -> dict[str, Any]:
    """Run one job; an error of any kind becomes a failed record."""
    job, stages = read_as(Job, content), Stages()
    forget_peak_memory()
    status, result, error = "done", {}, ""
    try:
        with threads(job.spec.threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of BatchNorm cycling and the like; the record says what was done
            result = _TASKS[job.spec.task](job, stages)
    except Exception as problem:
        status, error = "failed", f"{type(problem).__name__}: {problem}\n{traceback.format_exc(limit=-3)}"
    about = {**provenance(), "host": socket.gethostname(), "threads": job.spec.threads}
    about |= {"seconds": stages.seconds, "peak_memory_mb": peak_memory()}
    return Record(job.run_id, job.spec, status, result, error, about).to_dict()


def _prune(job: Job, stages: Stages) -> dict[str, Any]:
    spec, shared = job.spec, Shared(job, stages)
    result = prune(
        shared.model,
        shared.calibration,
        sparsity=spec.sparsity,
        rule=spec.rule,
        score=spec.score,
        repair=spec.repair,
        curves=shared.diagnosis(),
        config=spec.config,
    )
    for stage, seconds in result.timings.items():
        stages.seconds[stage] = round(seconds, 4)
    metrics, plan = shared.metrics(result.model), result.allocation
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
        **({"rule": plan.rule, "trials": [asdict(trial) for trial in result.trials]} if result.trials else {}),
    }


def _objective(shared: Shared, plan: Allocation) -> float:
    """J, strict: rr measured at the allocation's own sparsities, conditioned on CR+BN."""
    config = replace(shared.job.spec.config, grid={layer: [s] for layer, s in plan.items()})
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
    model = shared.model  # loaded before the clock of the search starts
    with stages("detect"):
        transition = find_transition(
            model,
            images,
            sparsities=spec.sweep,
            method=spec.method,
            null=spec.null,
            config=spec.config,
        )
    return {"transition": transition.to_dict(), "fingerprint": images.fingerprint}


_TASKS: dict[str, Callable[[Job, Stages], dict[str, Any]]] = {"prune": _prune, "detect": _detect}
