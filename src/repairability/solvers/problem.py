"""Problem: the discrete allocation problem every solver gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from repairability.allocation import pruned_count, target_count
from repairability.curves import FloatArray
from repairability.errors import BudgetError
from repairability.tables import percent


@dataclass(frozen=True)
class Problem:
    """min sum_l costs[l][k_l] subject to sum_l saved[l][k_l] >= budget, one level k_l per layer
    (eq:allocation_objective).

    `grids[l]` are the sparsities of layer l, ascending; `costs[l]` the measure there; `totals[l]` its weights. What a
    level saves is counted in weights; with `prices[l]`, what layer l costs at each level and, last, unpruned, in their
    unit: then `target` is the share of the unpruned prices that is to be saved.
    """

    grids: Sequence[FloatArray]
    costs: Sequence[FloatArray]
    totals: Sequence[int]
    target: float
    prices: Sequence[tuple[FloatArray, float]] | None = None

    def __post_init__(self) -> None:
        """Refuse targets outside what the grid spans, naming what was asked and what is reachable."""
        bottom, top = (sum(saved[end] for saved in self.saved) for end in (0, -1))
        span = f"the grid reaches {percent(bottom / self.whole)} to {percent(top / self.whole)}"
        asked = "sparsity" if self.prices is None else "a saving of"
        if self.budget > top:
            raise BudgetError(
                f"{asked} {percent(self.target)} is above the grid's top: {span}; measure higher sparsities"
            )
        if self.budget <= bottom and bottom > 0:
            raise BudgetError(
                f"{asked} {percent(self.target)} is at or below the grid's bottom: {span}; measure lower sparsities"
            )

    @cached_property
    def whole(self) -> float:
        """What nothing pruned would cost: all weights, or all prices."""
        return sum(self.totals) if self.prices is None else sum(full for _, full in self.prices)

    @cached_property
    def budget(self) -> float:
        """What is to be saved."""
        return target_count(self.totals, self.target) if self.prices is None else self.target * self.whole

    @cached_property
    def saved(self) -> Sequence[Sequence[float]]:
        """What each layer saves at each of its levels, never less at a higher one."""
        if self.prices is None:
            sizes = zip(self.grids, self.totals, strict=True)
            return [[pruned_count(total, float(s)) for s in grid] for grid, total in sizes]
        return [np.maximum.accumulate(full - prices).tolist() for prices, full in self.prices]

    def cost(self, levels: Sequence[int]) -> float:
        return float(sum(costs[k] for costs, k in zip(self.costs, levels, strict=True)))

    def saving(self, levels: Sequence[int]) -> float:
        return sum(saved[k] for saved, k in zip(self.saved, levels, strict=True))
