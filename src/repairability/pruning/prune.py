"""prune_many: diagnose, allocate, mask, repair copies; whatever can be shared is made once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from repairability._torch import copy_of
from repairability.allocation import check_sparsity
from repairability.calibration import CalibrationSet, Images
from repairability.curves import Curves
from repairability.diagnostics import Diagnosis, diagnose
from repairability.masks import apply_masks_, make_masks
from repairability.network.layers import Layers, prunable_layers
from repairability.pruning.config import PruneConfig, grid_for, needs_curves
from repairability.pruning.result import PruneResult
from repairability.repairs import Repair, Statistics, get_repair, measure_statistics
from repairability.repairs.choose import Chooser, choose_masks
from repairability.repairs.response import apply_repair_, chooses_masks, name_of
from repairability.rules import Rule, allocate, get_rule, options_of
from repairability.scores import Magnitude, Score, get_score


def prune_many(
    model: nn.Module,
    images: Images,
    *,
    sparsities: Sequence[float],
    rules: Sequence[str | Rule],
    score: str | Score = "magnitude",
    repair: str | Repair = "cr+bn",
    curves: Diagnosis | Curves | None = None,
    config: PruneConfig | None = None,
) -> Iterator[PruneResult]:
    """`prune` for every sparsity and rule, one after the other; they share one diagnosis and the dense statistics."""
    settings = config or PruneConfig()
    mending, choosing = get_repair(repair), get_score(score)
    targets = [check_sparsity(s) for s in sparsities]
    for rule in rules:
        get_rule(rule)
    layers = prunable_layers(model, types=settings.types, skip=settings.skip, only=settings.only)
    calibration = CalibrationSet.read(images, count=settings.count, batch_size=settings.batch_size)
    return _results(model, layers, calibration, targets, rules, choosing, mending, curves, settings)


def _results(
    model: nn.Module,
    layers: Layers,
    calibration: CalibrationSet,
    targets: Sequence[float],
    rules: Sequence[str | Rule],
    score: Score,
    repair: Repair,
    curves: Diagnosis | Curves | None,
    settings: PruneConfig,
) -> Iterator[PruneResult]:
    shared: dict[str, float] = {}
    if curves is None and any(needs_curves(rule, settings.options) for rule in rules):
        with _timed(shared, "diagnose"):
            grid = grid_for(targets, settings.grid) if isinstance(settings.grid, str) else settings.grid
            known = repair if settings.conditioned_on is None else settings.conditioned_on
            curves = diagnose(
                model, calibration, grid=grid, repair=known, observe=settings.observe, layers=layers, score=score
            )
    diagnosis = curves if isinstance(curves, Diagnosis) else None
    statistics: Statistics = {}
    if getattr(repair, "needs_statistics", True):
        with _timed(shared, "statistics"):
            statistics = _dense_statistics(model, layers, calibration, diagnosis)

    for target in targets:
        for rule in rules:
            timings = dict(shared)
            with _timed(timings, "allocate"):
                chosen = curves if needs_curves(rule, settings.options) else None
                options = _own_options(rule, rules, settings.options)
                plan = allocate(layers, sparsity=target, rule=rule, curves=chosen, **options)
            lost = [name for name in plan if plan.pruned(name)]
            pruned = copy_of(model)
            own = prunable_layers(pruned, types=settings.types, skip=settings.skip, only=settings.only).subset(lost)
            # a score that looks at inputs chooses on the way of the repair, where that goes layer by layer
            on_the_way = not isinstance(score, Magnitude) and chooses_masks(repair)
            chooser = Chooser(score, plan, own) if on_the_way else None
            if chooser is None:
                with _timed(timings, "mask"):
                    if isinstance(score, Magnitude):
                        masks = make_masks(layers, plan)
                    else:
                        masks = choose_masks(model, plan, score, calibration)
                    apply_masks_(pruned, masks)
            with _timed(timings, "repair"):
                if lost:
                    apply_repair_(repair, pruned, own, statistics, calibration, dense=model, choose=chooser)
            if chooser is not None:
                masks = chooser.masks(layers)
            used = diagnosis if chosen is not None else None
            yield PruneResult(
                pruned, plan, masks, name_of(repair), calibration.fingerprint, used, timings, name_of(score)
            )


def _own_options(rule: str | Rule, rules: Sequence[str | Rule], options: Mapping[str, Any]) -> dict[str, Any]:
    """In a comparison, an option goes to the rules that take it; one that none takes is left to fail by name."""
    known = [options_of(x) for x in rules]
    return {
        name: value
        for name, value in options.items()
        if name in options_of(rule) or not any(name in names for names in known)
    }


def _dense_statistics(
    model: nn.Module, layers: Layers, calibration: CalibrationSet, diagnosis: Diagnosis | None
) -> Statistics:
    """Those of the diagnosis, where it saw these layers on these images; else one dense pass."""
    known = diagnosis.statistics if diagnosis is not None and diagnosis.statistics is not None else {}
    if diagnosis is not None and diagnosis.fingerprint == calibration.fingerprint and set(layers.names) <= set(known):
        return known
    return measure_statistics(model, layers, calibration)


@contextmanager
def _timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    timings[stage] = time.perf_counter() - start
