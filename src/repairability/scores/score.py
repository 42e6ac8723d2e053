"""What a score is."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from repairability.algebra.moments import LeastSquares
from repairability.masks import magnitude_mask


class Score(Protocol):
    """Choose which `count` weights of a layer go: a mask like `problem.weights` [G, R, K], True where one stays."""

    def __call__(self, problem: LeastSquares, count: int) -> Tensor: ...


def lowest_go(values: Tensor, count: int) -> Tensor:
    """Exactly `count` of the smallest values go, among equals the lower index first."""
    kept = magnitude_mask(values.flatten().numpy(), count)
    return torch.from_numpy(kept).view(values.shape)
