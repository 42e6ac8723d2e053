"""The paper's: the smallest weights go."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from repairability.algebra.least_squares import LeastSquares
from repairability.scores.score import Score, lowest_go


@dataclass(frozen=True)
class Magnitude(Score):
    """|w|. The one score that needs no images: `prune` takes its masks straight from the weights."""

    looks_at_inputs = False

    def __call__(self, problem: LeastSquares, count: int) -> Tensor:
        return lowest_go(problem.weights.abs(), count)
