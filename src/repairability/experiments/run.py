"""One run: a job (plain dict) in, a record (plain dict) out."""

from __future__ import annotations

import socket
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from repairability import _interrupts
from repairability._torch import device_of, threads
from repairability.allocation import Allocation
from repairability.comparison import agreement_of_outputs, outputs_of
from repairability.data import Data
from repairability.detect import find_transition
from repairability.errors import first_line, of_the_place
from repairability.experiments.record import Record
from repairability.experiments.shared import BATCH, Shared
from repairability.experiments.spec import Job, read_as
from repairability.provenance import forget_peak_memory, peak_memory, provenance, timed
from repairability.pruning import RECIPES, measurement_for, prune
from repairability.transition import objective


def run_job(content: dict[str, Any]) -> dict[str, Any] | str:
    """Run one job. An error of what was asked becomes a failed record; one of the place is no result: it is said, as
    text, and the run stays open.
    """
    job = read_as(Job, content)
    shared = Shared(job)
    forget_peak_memory()
    status: Literal["done", "failed"] = "done"
    result, error = {}, ""
    known: dict[str, str] = {}
    try:
        device_of(job.device)
        with threads(job.spec.threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of BatchNorm cycling and the like; the record says what was done
            result = _TASKS[job.spec.task](shared)
            known = shared.contents()
    except Exception as problem:
        if _interrupts.came():  # and was swallowed on its way: the error is its consequence, and no result
            raise KeyboardInterrupt from problem
        if of_the_place(problem):
            return f"{type(problem).__name__}: {first_line(problem)}"
        status, error = "failed", f"{type(problem).__name__}: {problem}\n{traceback.format_exc(limit=-3)}"
    about = {**provenance(), **known, "host": socket.gethostname(), "threads": job.spec.threads}
    about |= {"seconds": {stage: round(seconds, 4) for stage, seconds in shared.seconds.items()}}
    about |= {"peak_memory_mb": peak_memory()}
    return Record(job.run_id, job.spec, status, result, error, about).to_dict()


def _prune(shared: Shared) -> dict[str, Any]:
    spec, curves = shared.spec, shared.diagnosis()
    way: dict[str, Any] = {"rule": spec.rule, "score": spec.score, "repair": spec.repair, "config": spec.config}
    result = prune(shared.model, shared.calibration, sparsity=spec.sparsity, curves=curves, **way)
    shared.seconds.update(result.timings)
    metrics, plan = shared.metrics(result.model), result.allocation
    with timed(shared.seconds, "objective"):
        value = _objective(shared, plan) if spec.objective else None
    with timed(shared.seconds, "agreement"):
        similar = _agreement(shared, result.model) if spec.held_out else None
    return {
        "achieved": plan.sparsity,
        "global_sparsity": plan.global_sparsity,
        **{name: getattr(metrics, name) for name in ("top1", "top5", "loss", "n")},
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
    config = replace(shared.spec.config, grid={layer: [s] for layer, s in plan.items()})
    wanted = measurement_for(RECIPES["paper"], [plan.sparsity], config)
    assert wanted is not None, "rr works on curves"
    return objective(wanted.diagnose(shared.model, shared.calibration, shared.layers).rr, plan)


def _agreement(shared: Shared, model: nn.Module) -> dict[str, Any]:
    """With the dense network, on unlabeled training images after those of the calibration."""
    spec, used = shared.spec, len(shared.calibration)
    batches, theirs = _held_out(shared.model, shared.data, used, spec.held_out, spec.seed)
    return agreement_of_outputs(zip(theirs, outputs_of(shared.finished(model), batches), strict=True)).to_dict()


@lru_cache(maxsize=1)
def _held_out(model: nn.Module, data: Data, used: int, count: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """The images, and what the dense network says of them."""
    images = data.unlabeled(used + count, seed)[used:].contiguous(memory_format=torch.channels_last)
    batches = list(images.split(BATCH))  # type: ignore[no-untyped-call]
    return batches, outputs_of(model, batches)


def _detect(shared: Shared) -> dict[str, Any]:
    spec, model, images = shared.spec, shared.model, shared.calibration  # loaded before the clock of the search starts
    with timed(shared.seconds, "detect"):
        asked: dict[str, Any] = {"sparsities": spec.sweep, "method": spec.method, "null": spec.null}
        transition = find_transition(model, images, config=spec.config, **asked)
    return {"transition": transition.to_dict(), "fingerprint": images.fingerprint}


_TASKS: dict[str, Callable[[Shared], dict[str, Any]]] = {"prune": _prune, "detect": _detect}
