"""Problem: the discrete allocation problem every solver gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from repairability.allocation import pruned_count, target_count
from repairability.curves import FloatArray
from repairability.errors import BudgetError
from repairability.tables import percent


@dataclass(frozen=True)
class Problem:
    """min sum_l costs[l][k_l] subject to sum_l counts[l][k_l] >= budget, one level k_l per layer
    (eq:allocation_objective).

    `grids[l]` are the sparsities of layer l, ascending; `costs[l]` the measure there; `totals[l]` its weights.
    """

    grids: Sequence[FloatArray]
    costs: Sequence[FloatArray]
    totals: Sequence[int]
    target: float

    def __post_init__(self) -> None:
        """Refuse targets outside what the grid spans, naming what was asked and what is reachable."""
        total = sum(self.totals)
        bottom, top = (sum(counts[end] for counts in self.counts) for end in (0, -1))
        span = f"the grid reaches {percent(bottom / total)} to {percent(top / total)}"
        if self.budget > top:
            raise BudgetError(
                f"sparsity {percent(self.target)} is above the grid's top: {span}; measure higher sparsities"
            )
        if self.budget <= bottom and bottom > 0:
            raise BudgetError(
                f"sparsity {percent(self.target)} is at or below the grid's bottom: {span}; measure lower sparsities"
            )

    @cached_property
    def budget(self) -> int:
        return target_count(self.totals, self.target)

    @cached_property
    def counts(self) -> list[list[int]]:
        """How many weights of each layer go at each of its levels."""
        return [
            [pruned_count(total, float(s)) for s in grid] for grid, total in zip(self.grids, self.totals, strict=True)
        ]

    def cost(self, levels: Sequence[int]) -> float:
        return float(sum(costs[k] for costs, k in zip(self.costs, levels, strict=True)))

    def pruned(self, levels: Sequence[int]) -> int:
        return sum(counts[k] for counts, k in zip(self.counts, levels, strict=True))
