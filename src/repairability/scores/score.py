"""What a score is: which weights of a layer go, when a given number must."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from repairability.algebra.least_squares import LeastSquares
from repairability.masks import magnitude_mask
from repairability.naming import Named


@dataclass(frozen=True)
class Score(Named, ABC):
    """Chooses which `count` weights of a layer go: a mask like `problem.weights` [G, R, K], True where one stays.

    What it needs, it declares: `looks_at_inputs` is False for a score that the weights alone decide; `solves` is True
    for one that solves least squares to choose, so that a run's id says by which version of them.
    """

    looks_at_inputs: ClassVar[bool] = True
    solves: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, problem: LeastSquares, count: int) -> Tensor: ...

    def operations(self, inputs: int) -> float:
        """Roughly what the choice of a filter's weights and their refit take, in multiply-adds, for an estimate: a
        factorisation, where there are many inputs as much in steps.
        """
        return float(min(inputs, 768)) ** 3

    def levels(self, problem: LeastSquares, counts: Sequence[int], ridge: float) -> list[tuple[Tensor, Tensor]]:
        """Per count: the mask [G, R, K], and the error per output [G, R] that is left when the rest is refitted,
        y'y - b_S' G_SS^-1 b_S and the ridge.
        """
        masks = [self(problem, count) for count in counts]
        return [(mask, problem.error(problem.refitted(mask, ridge))) for mask in masks]


@dataclass(frozen=True)
class CustomScore(Score):
    """A bare function (problem, count) -> mask; it is given the layer's inputs, whether it looks at them or not."""

    function: Callable[[LeastSquares, int], Tensor]

    def __call__(self, problem: LeastSquares, count: int) -> Tensor:
        return self.function(problem, count)


def lowest_go(values: Tensor, count: int) -> Tensor:
    """Exactly `count` of the smallest values go, among equals the lower index first."""
    kept = magnitude_mask(values.flatten().numpy(), count)
    return torch.from_numpy(kept).view(values.shape)
