"""What a pruning run is told beyond its recipe, and the one place that decides which curves it measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from repairability.calibration import COUNT, CalibrationSet, Images, images_for
from repairability.comparison import Distance
from repairability.curves import MEASURES
from repairability.diagnostics import GRID, Diagnosis, diagnose
from repairability.errors import BudgetError, InputError
from repairability.network.batches import Forward
from repairability.network.discover import AUTO_TYPES, SKIPPED, prunable_layers
from repairability.network.layers import Layers
from repairability.network.outputs import Output
from repairability.pruning.recipe import Recipe
from repairability.repairs import Repair, RepairLike, get_repair
from repairability.rules import get_rule
from repairability.scores import Score, get_score
from repairability.tables import percent

LOWER = (0.6, 0.5, 0.3, 0.0)
UPPER = (0.985, 0.99, 0.995)
GRIDS = ("auto", "paper")
WIDE = (0.0, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.98, 0.99, 0.995)
"""The grid of a rule that measures at the network's output: what it tries there does not grow with the points."""

Grid = str | Sequence[float] | Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class PruneConfig:
    """What `prune` does with its images and layers, beyond the usual.

    grid: the sparsities to measure; "paper": the paper's seven, extended as far as the target needs; "auto": the same,
    but a target of 97.5 % or more brings all points up to 99.5 %.
    observe: where damage is measured, "layer", "norm" or "literal" (see `diagnose`). conditioned_on: the repair the
    diagnosis reckons with, if not the one that is applied. options: the rule's own (solver, floor, pinned ...).
    types, skip, only: which layers may be pruned (see `prunable_layers`). count, batch_size: images for the statistics,
    and at a time. forward: how a batch goes into the model, (model, batch) -> output, where `model(batch)` or its like
    is not it. output, distance: which part of the output tells networks apart, and how, for a choice without labels
    (see `agreement`).
    """

    grid: Grid = "auto"
    observe: str = "layer"
    conditioned_on: RepairLike | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    types: str | Sequence[str] = AUTO_TYPES
    skip: Sequence[str] = SKIPPED
    only: Sequence[str] = ("*",)
    count: int = COUNT
    batch_size: int = COUNT
    forward: Forward | None = None
    output: Output = None
    distance: Distance = None

    def layers(self, model: nn.Module, calibration: CalibrationSet) -> Layers:
        """The layers of a network that this configuration lets be pruned, and that these samples reach."""
        first = next(calibration.batches(model))
        choice = {"types": self.types, "skip": self.skip, "only": self.only}
        return prunable_layers(model, batch=first, forward=calibration.forward, **choice)

    def calibration(self, images: Images, model: nn.Module, *, held_out: int = 0) -> CalibrationSet:
        """The images of the statistics, BatchNorm's, and so many to be held out; a CalibrationSet stays what it is."""
        most = images_for(self.count, held_out)
        sizes = {"count": self.count, "batch_size": self.batch_size, "most": most}
        return CalibrationSet.read(images, model=model, forward=self.forward, **sizes)


def with_forward(config: PruneConfig | None, forward: Forward | None) -> PruneConfig:
    """The configuration, and how a batch goes into the model where the call says so."""
    settings = config or PruneConfig()
    return settings if forward is None else replace(settings, forward=forward)


@dataclass(frozen=True)
class Measurement:
    """Curves that a run needs: at which sparsities, conditioned on which repair, observed where, for whose choice."""

    grid: Sequence[float] | Mapping[str, Sequence[float]]
    repair: Repair
    observe: str
    score: Score
    measures: tuple[str, ...] = MEASURES
    output: Output = None
    distance: Distance = None

    def diagnose(self, model: nn.Module, calibration: CalibrationSet, layers: Layers) -> Diagnosis:
        return diagnose(
            model,
            calibration,
            grid=self.grid,
            repair=self.repair,
            observe=self.observe,
            layers=layers,
            score=self.score,
            measures=self.measures,
            output=self.output,
            distance=self.distance,
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells one measurement from another on the same network and images, in plain values."""
        grid = dict(self.grid) if isinstance(self.grid, Mapping) else list(self.grid)
        more = [self.measures[len(MEASURES) :]] if len(self.measures) > len(MEASURES) else []
        return (grid, self.repair.name, self.observe, self.score.name, *more)


def measurement_for(recipe: Recipe, sparsities: Sequence[float], config: PruneConfig) -> Measurement | None:
    """The curves that a recipe needs to reach these sparsities, or None where its rule works on none.

    Everyone asks here: `prune`, `prune_many`, `prune_best`, studies and `find_transition`.
    """
    rule = get_rule(recipe.rule)
    if not rule.works_on_curves(recipe.options):
        return None
    own = rule.measures(recipe.options)
    kind = WIDE if own and config.grid == "auto" else config.grid
    grid = grid_for(sparsities, kind) if isinstance(kind, str) else kind
    repair = get_repair(recipe.repair if config.conditioned_on is None else config.conditioned_on)
    score = recipe.score if repair.fit is not None else "magnitude"  # other repairs' curves are of the smallest weights
    measurement = Measurement(grid, repair, config.observe, get_score(score))
    if own:
        return replace(measurement, measures=(*MEASURES, *own), output=config.output, distance=config.distance)
    return measurement


def grid_for(targets: Sequence[float], kind: str = "auto") -> tuple[float, ...]:
    """The paper's grid, extended downwards as far as the targets need, and upwards.

    "paper": as far as they need. But where the grid ends at the target, every layer must stand there, and a measured
    rule is `uniform`. So "auto" goes on to the last point once a target reaches the paper's own last one; below that a
    longer grid helps one network and harms another (reproduction/pages/choices.md).
    """
    if kind not in GRIDS:
        raise InputError(f"grid must be {' or '.join(map(repr, GRIDS))} or sparsities, not {kind!r}")
    grid = list(GRID)
    for point in LOWER:
        if min(targets) <= grid[0]:
            grid.insert(0, point)
    above = kind == "auto" and max(targets) >= GRID[-1]
    for point in UPPER:
        if above or max(targets) > grid[-1]:
            grid.append(point)
    if max(targets) > grid[-1]:
        raise BudgetError(
            f"sparsity {percent(max(targets))} is above {percent(grid[-1])}, the highest of grid={kind!r}"
        )
    return tuple(grid)
