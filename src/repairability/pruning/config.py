"""What a pruning run is told beyond the usual, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from repairability.calibration import COUNT
from repairability.diagnostics import GRID
from repairability.errors import BudgetError, InputError
from repairability.network.layers import FIRST_CONV
from repairability.repairs import Repair
from repairability.rules import MEASURES, Rule
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
    conditioned_on: str | Repair | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    types: Sequence[str] = ("conv",)
    skip: Sequence[str] = (FIRST_CONV,)
    only: Sequence[str] = ("*",)
    count: int = COUNT
    batch_size: int = COUNT


def needs_curves(rule: str | Rule, options: Mapping[str, Any]) -> bool:
    """Whether a rule works on measured curves; a callable says so by an attribute `needs_curves`."""
    if not isinstance(rule, str):
        return bool(getattr(rule, "needs_curves", False))
    return rule in MEASURES or (rule == "forced" and options.get("rest", "erk") in MEASURES)


def grid_for(targets: Sequence[float], kind: str = "auto") -> tuple[float, ...]:
    """The paper's grid, extended downwards as far as the targets need, and upwards.

    "paper": as far as they need. But where the grid ends at the target, every layer must stand there, and a measured
    rule is `uniform`. So "auto" goes on to the last point once a target reaches the paper's own last one; below that a
    longer grid helps one network and harms another (docs/reproduction.md).
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
