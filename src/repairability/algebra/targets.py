"""Targets: input columns of a layer, the outputs wanted for them, and where a difference from these is not felt."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from repairability.algebra.moments import InputMoments
from repairability.algebra.multiply import times

_CHUNK = 2**14
"""Columns multiplied at a time; their products are added in float64."""


@dataclass(frozen=True, eq=False)
class Targets:
    """x [G, K, M]: input columns. y [G, R, M]: the outputs that are wanted of them. An activation that is constant
    below `low` and above `high` ([G, R, M], or [G, R, 1]; none: it is nowhere) stands behind: where y lies beyond one
    of them, any output beyond it is as good.
    """

    x: Tensor
    y: Tensor
    low: Tensor | None = None
    high: Tensor | None = None

    def moments(self) -> InputMoments:
        moments = InputMoments(self.x.shape[0], self.x.shape[1], self.y.shape[1])
        for x, y in zip(self.x.split(_CHUNK, -1), self.y.split(_CHUNK, -1), strict=True):  # type: ignore[no-untyped-call]
            moments.update(x, y)
        return moments

    def in_blocks(self, weights: Tensor, blocks: int) -> Targets:
        """The inputs in blocks [G B, K / B, M], each with a target of its own: what the dense weights [G, R, K] make of
        the block, and its share of what is missing from y. So no Gram is larger than a block's; inputs of different
        blocks count as uncorrelated.
        """
        x = self.x.reshape(len(self.x) * blocks, -1, self.x.shape[2])
        own = times(blocked(weights.to(x.dtype), blocks), x)  # [G B, R, M]
        missing = self.y - own.view(len(self.y), blocks, *own.shape[1:]).sum(1)
        return Targets(x, own + missing.repeat_interleave(blocks, 0) / blocks)

    def given(self, weights: Tensor, shift: Tensor) -> Tensor:
        """What a layer with these weights [G, R, K] and this shift [G, R] gives: [G, R, M]."""
        return times(weights.to(self.x.dtype), self.x).add_(shift[..., None].to(self.x.dtype))

    def moved(self, given: Tensor) -> Targets:
        """The targets that are nearest to what is given and as good as y.

        The squared distance to the nearest good output, sum_{y felt} (o - y)^2 + sum_{y < low} max(o - low, 0)^2 + ...,
        is convex in o and lies below the squared distance to any good output; so refitting to targets that move so
        never raises it, and ends in its least value.
        """
        y = self.y
        if self.low is not None:
            y = torch.where(self.y <= self.low, torch.minimum(given, self.low), y)
        if self.high is not None:
            y = torch.where(self.y >= self.high, torch.maximum(given, self.high), y)
        return replace(self, y=y)

    def of_outputs(self, known: InputMoments) -> InputMoments:
        """The moments of these targets, where those of the same inputs are known."""
        moments = InputMoments(known.groups, known.inputs, known.outputs)
        moments.n, moments.xx, moments.x = known.n, known.xx, known.x
        for x, y in zip(self.x.split(_CHUNK, -1), self.y.split(_CHUNK, -1), strict=True):  # type: ignore[no-untyped-call]
            moments.add_outputs(x, y)
        return moments


def blocked(filters: Tensor, blocks: int) -> Tensor:
    """Filters [G, R, K] by blocks of their inputs [G B, R, K / B]."""
    groups, rows, _ = filters.shape
    return filters.reshape(groups, rows, blocks, -1).transpose(1, 2).reshape(groups * blocks, rows, -1)


def joined(filters: Tensor, blocks: int) -> Tensor:
    """The way back."""
    rows = filters.shape[1]
    return filters.reshape(-1, blocks, *filters.shape[1:]).transpose(1, 2).reshape(len(filters) // blocks, rows, -1)
