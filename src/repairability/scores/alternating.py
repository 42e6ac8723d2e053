"""Alternating directions: the weights with which the layer's outputs can be given best, found together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from repairability.algebra.alternating import alternating, alternating_levels
from repairability.algebra.least_squares import LeastSquares
from repairability.scores.score import Score, lowest_go

THOROUGH, DEAR = 1024, 3072
"""Filters with more inputs than these get a shorter search: its price grows with their square."""


@dataclass(frozen=True)
class Alternating(Score):
    """From the least-squares optimum on all inputs, a search for the weights that leave the least error when the others
    are zero and these are refitted (`algebra.alternating`). The error counts in units of the output behind the
    BatchNorm.
    """

    solves = True
    ridge: float = 1e-3

    def __call__(self, problem: LeastSquares, count: int) -> Tensor:
        best, grams, scale = self._of(problem)
        inputs = grams.shape[1]
        stages, steps = (10, 14) if inputs <= THOROUGH else (4, 10) if inputs <= DEAR else (3, 7)
        return lowest_go(alternating(best, grams, scale, count, stages=stages, steps=steps).abs(), count)

    def operations(self, inputs: int) -> float:
        """Half the number of products with the filter's K x K Gram, the refit's among them: they come nearer to a plain
        product's speed than the sums.
        """
        return (60.0 if inputs > THOROUGH else 130.0) * inputs**2

    def levels(self, problem: LeastSquares, counts: Sequence[int], ridge: float) -> list[tuple[Tensor, Tensor]]:
        """From one search that goes on from level to level."""
        steps = 4 if problem.weights.shape[2] > THOROUGH else 10
        values = alternating_levels(*self._of(problem), counts, steps=steps)
        masks = [lowest_go(x.abs(), count) for x, count in zip(values, counts, strict=True)]
        best = problem.best(ridge)
        return [
            (mask, problem.rough_error(problem.refitted(mask, ridge, start=best * mask, steps=steps), ridge))
            for mask in masks
        ]

    def _of(self, problem: LeastSquares) -> tuple[Tensor, Tensor, Tensor]:
        grams = torch.stack([problem.damped(g, self.ridge) for g in range(len(problem.weights))])
        return problem.best(self.ridge), grams, problem.unit.square()
