"""What a pruning run is told beyond its recipe, and the one place that decides which curves it measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from repairability.calibration import COUNT, CalibrationSet, Images, images_for
from repairability.diagnostics import GRID, Diagnosis, diagnose
from repairability.errors import BudgetError, InputError
from repairability.network.layers import FIRST_CONV, Layers, prunable_layers
from repairability.pruning.recipe import Recipe
from repairability.repairs import Repair, RepairLike, get_repair
from repairability.rules import get_rule
from repairability.scores import Score, get_score
from repairability.tables import percent

LOWER = (0.6, 0.5, 0.3, 0.0)
UPPER = (0.985, 0.99, 0.995)
GRIDS = ("auto", "paper")

Grid = str | Sequence[float] | Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class PruneConfig:
    """What `prune` does with its images and layers, beyond the usual.

    grid: the sparsities to measure; "paper": the paper's seven, extended as far as the target needs; "auto": the same,
    but a target of 97.5 % or more brings all points up to 99.5 %.
    observe: where damage is measured, "layer" or "norm". conditioned_on: the repair the diagnosis reckons with, if not
    the one that is applied. options: the rule's own (solver, floor, pinned ...).
    types, skip, only: which layers may be pruned. count, batch_size: images for the statistics, and at a time.
    """

    grid: Grid = "auto"
    observe: str = "layer"
    conditioned_on: RepairLike | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    types: Sequence[str] = ("conv",)
    skip: Sequence[str] = (FIRST_CONV,)
    only: Sequence[str] = ("*",)
    count: int = COUNT
    batch_size: int = COUNT

    def layers(self, model: nn.Module) -> Layers:
        """The layers of a network that this configuration lets be pruned."""
        return prunable_layers(model, types=self.types, skip=self.skip, only=self.only)

    def calibration(self, images: Images, *, held_out: int = 0) -> CalibrationSet:
        """The images of the statistics, BatchNorm's, and so many to be held out; a CalibrationSet stays what it is."""
        most = images_for(self.count, held_out)
        return CalibrationSet.read(images, count=self.count, batch_size=self.batch_size, most=most)


@dataclass(frozen=True)
class Measurement:
    """Curves that a run needs: at which sparsities, conditioned on which repair, observed where, for whose choice."""

    grid: Sequence[float] | Mapping[str, Sequence[float]]
    repair: Repair
    observe: str
    score: Score

    def diagnose(self, model: nn.Module, calibration: CalibrationSet, layers: Layers) -> Diagnosis:
        return diagnose(
            model,
            calibration,
            grid=self.grid,
            repair=self.repair,
            observe=self.observe,
            layers=layers,
            score=self.score,
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells one measurement from another on the same network and images, in plain values."""
        grid = dict(self.grid) if isinstance(self.grid, Mapping) else list(self.grid)
        return (grid, self.repair.name, self.observe, self.score.name)


def measurement_for(recipe: Recipe, sparsities: Sequence[float], config: PruneConfig) -> Measurement | None:
    """The curves that a recipe needs to reach these sparsities, or None where its rule works on none.

    Everyone asks here: `prune`, `prune_many`, `prune_best`, studies and `find_transition`.
    """
    if not get_rule(recipe.rule).works_on_curves(recipe.options):
        return None
    grid = grid_for(sparsities, config.grid) if isinstance(config.grid, str) else config.grid
    repair = get_repair(recipe.repair if config.conditioned_on is None else config.conditioned_on)
    score = recipe.score if repair.fit is not None else "magnitude"  # other repairs' curves are of the smallest weights
    return Measurement(grid, repair, config.observe, get_score(score))


def grid_for(targets: Sequence[float], kind: str = "auto") -> tuple[float, ...]:
    """The paper's grid, extended downwards as far as the targets need, and upwards.

    "paper": as far as they need. But where the grid ends at the target, every layer must stand there, and a measured
    rule is `uniform`. So "auto" goes on to the last point once a target reaches the paper's own last one; below that a
    longer grid helps one network and harms another (reproduction/pages/reproduction.md).
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
