"""The main job: diagnose, allocate, mask, repair a copy."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from repairability._torch import copy_of
from repairability.allocation import Allocation, check_sparsity
from repairability.calibration import COUNT, CalibrationSet, Images
from repairability.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from repairability.curves import Curves
from repairability.diagnostics import GRID, Diagnosis, diagnose
from repairability.errors import BudgetError, InputError
from repairability.layers import FIRST_CONV, Layers, prunable_layers
from repairability.masks import Masks, apply_masks_, make_masks
from repairability.repair import Repair, Statistics, get_repair, measure_statistics
from repairability.repair.choose import Chooser, choose_masks
from repairability.repair.response import apply_repair_, chooses_masks, name_of
from repairability.rules import MEASURES, Rule, allocate, get_rule, options_of
from repairability.scores import Magnitude, Score, get_score
from repairability.tables import Table, percent

LOWER = (0.6, 0.5, 0.3, 0.0)
UPPER = (0.985, 0.99, 0.995)

Grid = str | Sequence[float] | Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class PruneConfig:
    """What `prune` does with its images and layers, beyond the usual.

    grid: the sparsities to measure, or "auto": the paper's seven, extended as far as the target needs.
    observe: where damage is measured, "layer" or "norm". conditioned_on: the repair the diagnosis reckons with, if not
    the one that is applied. options: the rule's own (solver, floor, pinned ...).
    types, skip, only: which layers may be pruned. count, batch_size: images for the statistics, and at a time.
    """

    grid: Grid = "auto"
    observe: str = "layer"
    conditioned_on: str | Repair | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    types: Sequence[str] = ("conv",)
    skip: Sequence[str] = (FIRST_CONV,)
    only: Sequence[str] = ("*",)
    count: int = COUNT
    batch_size: int = COUNT


@dataclass(frozen=True)
class PruneResult:
    """A pruned and repaired copy of a network, and how it came about."""

    model: nn.Module
    allocation: Allocation
    masks: Masks
    repair: str
    fingerprint: str  # of the calibration images
    diagnosis: Diagnosis | None = None
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds per stage
    score: str = "magnitude"

    @property
    def sparsity(self) -> float:
        """Over the prunable weights."""
        return self.allocation.sparsity

    @property
    def global_sparsity(self) -> float:
        """Over all weights of the pruned types, the dense stem included."""
        return self.allocation.global_sparsity

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model and what this object knows as safetensors; `repairability.load` reads it back."""
        save_checkpoint(
            path, self.model, self.allocation, score=self.score, repair=self.repair, fingerprint=self.fingerprint
        )

    def table(self) -> Table:
        columns = ["layer", "kept", "total", "sparsity"]
        measured = {} if self.diagnosis is None else {m: getattr(self.diagnosis, m) for m in MEASURES}
        rows = []
        for layer, total in self.allocation.totals.items():
            s = self.allocation[layer]
            row = [layer, f"{total - self.allocation.pruned(layer):,}", f"{total:,}", f"{s:.4f}"]
            rows.append(row + [_at(curves, layer, s) for curves in measured.values()])
        spent = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in self.timings.items())
        caption = (
            f"rule {self.allocation.rule}, score {self.score}, repair {self.repair}: {percent(self.sparsity)} of the "
            f"prunable weights, {percent(self.global_sparsity)} of all; {spent}"
        )
        return Table([*columns, *measured], rows, caption=caption)

    def __str__(self) -> str:
        return str(self.table())

    def to_dict(self) -> dict[str, Any]:
        """Plain objects: what `--json` prints."""
        return {
            **self.allocation.to_dict(),
            "score": self.score,
            "repair": self.repair,
            "calibration": self.fingerprint,
            "timings": dict(self.timings),
        }


def prune(
    model: nn.Module,
    images: Images,
    *,
    sparsity: float,
    rule: str | Rule = "rr",
    score: str | Score = "magnitude",
    repair: str | Repair = "cr+bn",
    curves: Diagnosis | Curves | None = None,
    config: PruneConfig | None = None,
) -> PruneResult:
    """Prune a copy of `model` to `sparsity` and repair it, with nothing but unlabeled images.

    `rule` says how many weights each layer loses, `score` which ones, `repair` what is mended afterwards. The first 128
    images serve the statistics, up to 2,560 after them BatchNorm recalibration (with fewer it cycles, and a warning
    says so); a reconstruction, and a score that looks at inputs, take the first 1,024. A diagnosis is made only if the
    rule needs one and none is given as `curves`.
    """
    (result,) = prune_many(
        model, images, sparsities=[sparsity], rules=[rule], score=score, repair=repair, curves=curves, config=config
    )
    return result


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
            grid = grid_for(targets) if isinstance(settings.grid, str) else settings.grid
            if isinstance(settings.grid, str) and settings.grid != "auto":
                raise InputError(f"grid must be 'auto' or sparsities, not {settings.grid!r}")
            known = repair if settings.conditioned_on is None else settings.conditioned_on
            curves = diagnose(model, calibration, grid=grid, repair=known, observe=settings.observe, layers=layers)
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


def load(path: str | os.PathLike[str], model: nn.Module) -> Checkpoint:
    """Read what `PruneResult.save` wrote, into a copy of `model` (the dense architecture; it is not changed)."""
    return load_checkpoint(path, model)


def needs_curves(rule: str | Rule, options: Mapping[str, Any]) -> bool:
    """Whether a rule works on measured curves; a callable says so by an attribute `needs_curves`."""
    if not isinstance(rule, str):
        return bool(getattr(rule, "needs_curves", False))
    return rule in MEASURES or (rule == "forced" and options.get("rest", "erk") in MEASURES)


def grid_for(targets: Sequence[float]) -> tuple[float, ...]:
    """The paper's grid, extended downwards and upwards as far as the targets need."""
    grid = list(GRID)
    for point in LOWER:
        if min(targets) <= grid[0]:
            grid.insert(0, point)
    for point in UPPER:
        if max(targets) > grid[-1]:
            grid.append(point)
    if max(targets) > grid[-1]:
        raise BudgetError(f"sparsity {percent(max(targets))} is above {percent(grid[-1])}, the highest of grid='auto'")
    return tuple(grid)


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


def _at(curves: Curves, layer: str, sparsity: float) -> str:
    """The measured value at a grid sparsity; nothing between the points."""
    return f"{curves.at(layer, sparsity):.4f}" if layer in curves and sparsity in curves.grid[layer] else ""


@contextmanager
def _timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    timings[stage] = time.perf_counter() - start
