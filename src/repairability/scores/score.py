"""What a score is."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from repairability.masks import magnitude_mask
from repairability.moments import LeastSquares


class Score(Protocol):
    """Choose which `count` weights of a layer go: a mask [G, R, K] like `problem.weights`, True where a weight stays.

    A score that looks at nothing but the weights says so by `needs_inputs = False`; then no image is run for it.
    """

    def __call__(self, problem: LeastSquares, count: int) -> Tensor: ...


def lowest_go(values: Tensor, count: int) -> Tensor:
    """Exactly `count` of the smallest values go, among equals the lower index first."""
    import torch

    kept = magnitude_mask(values.flatten().numpy(), count)
    return torch.from_numpy(kept).view(values.shape)


def needs_inputs(score: Score) -> bool:
    return bool(getattr(score, "needs_inputs", True))
