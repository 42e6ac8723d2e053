"""A weight matters as much as the input it meets."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from repairability.algebra.least_squares import LeastSquares
from repairability.scores.score import Score, lowest_go


@dataclass(frozen=True)
class Activation(Score):
    """|w| times the norm of its input, sqrt(mean x^2): what the weight alone adds to the output."""

    def __call__(self, problem: LeastSquares, count: int) -> Tensor:
        return lowest_go(problem.weights.abs() * problem.square.clamp(min=0).sqrt()[:, None, :], count)
