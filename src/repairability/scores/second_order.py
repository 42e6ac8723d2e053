"""Optimal brain surgeon: the weights whose removal costs least when the others may answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from repairability.algebra.grams import cholesky
from repairability.algebra.least_squares import LeastSquares
from repairability.algebra.surgeon import Removal, mask_of, removal_trace, wide_trace
from repairability.scores.score import Score

EXACT = 768
"""Filters with more inputs than this are cut first; the surgeon is exact up to here."""

LEFT = 384
"""A wide filter is cut to so many inputs before the exact surgeon takes over, or to GENEROSITY times what is kept."""

GENEROSITY = 4
"""Cutting to four times the average that stays costs 1 to 2 % of the layer's error (benchmarks/surgeon.py)."""


@dataclass(frozen=True)
class SecondOrder(Score):
    """From the least-squares optimum on all inputs, remove the weight that raises the layer's error least, let the
    others answer, go on. Across the filters of a layer the error counts in units of the output behind the BatchNorm.
    """

    solves = True
    ridge: float = 1e-3

    def __call__(self, problem: LeastSquares, count: int) -> Tensor:
        return mask_of(self.trace(problem, count), count).view(problem.weights.shape)

    def operations(self, inputs: int) -> float:
        """The removal of one weight after the other."""
        return float(min(inputs, EXACT)) ** 3

    def trace(self, problem: LeastSquares, count: int | None = None) -> Removal:
        """The order of removal in every filter of every group, and what each step costs; `count`, if known, decides how
        far a wide filter is cut.
        """
        traces = [self._of_group(problem, g, count) for g in range(len(problem.weights))]
        return Removal(
            *(torch.cat(parts) for parts in zip(*((t.order, t.increase, t.forced) for t in traces), strict=True))
        )

    def levels(self, problem: LeastSquares, counts: Sequence[int], ridge: float) -> list[tuple[Tensor, Tensor]]:
        """From one trace, which holds every level: a filter that has lost k weights is left with the error of the fit
        on all inputs and the sum of its first k steps.
        """
        removal, shape = self.trace(problem), problem.weights.shape
        everything = torch.ones_like(problem.weights, dtype=torch.bool)
        least = problem.error(problem.refitted(everything, ridge))
        unit = problem.unit.square().clamp(min=torch.finfo(torch.float64).tiny)
        steps = torch.cat([torch.zeros(len(removal.increase), 1, dtype=torch.float64), removal.increase.cumsum(1)], 1)
        levels = []
        for count in counts:
            mask = mask_of(removal, count)
            lost = (~mask).sum(1)  # [G * R]
            levels.append((mask.view(shape), least + steps.gather(1, lost[:, None]).view(shape[:2]) / unit))
        return levels

    def _of_group(self, problem: LeastSquares, g: int, count: int | None) -> Removal:
        gram, weights, scale = problem.damped(g, self.ridge), problem.weights[g], problem.unit[g].square()
        # with the ridge toward the dense weights: (G + ridge) (w - w_dense) = c - G w_dense
        step = torch.cholesky_solve(problem.cross[g] - problem.gram[g] @ weights.mT, cholesky(gram[None])[0])
        best = weights + step.mT
        inputs = gram.shape[0]
        if inputs <= EXACT:
            return removal_trace(best, gram, scale)
        kept = 0 if count is None else 1 - count / problem.weights.numel()
        limit = min(inputs, max(LEFT, int(GENEROSITY * kept * inputs)))
        return wide_trace(best, gram, scale, limit=limit)
