"""A network as stages over whole values: products with all that is folded into them, and pooling."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

INFINITY = float("inf")
Shape = tuple[int, ...]


class Unreadable(Exception):
    """Something the stages below cannot say; the message names it."""


@dataclass
class Stage:
    """One step over whole values. `source` and `target` are numbers of values; a target of several stages
    (a concatenation) is written from channel `at` on.
    """

    name: str
    source: int
    target: int
    at: int = 0


@dataclass
class LinearStage(Stage):
    """target = clamp(weight * source + bias + residual, floor, cap); of a map a convolution, of features a matrix."""

    weight: Tensor = field(default_factory=lambda: torch.empty(0))
    bias: Tensor = field(default_factory=lambda: torch.empty(0))
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    layer: bool = False
    """Whether it is a layer of the user's, not one we made of an operation without weights."""

    residual: int | None = None
    floor: float = -INFINITY
    cap: float = INFINITY

    @property
    def open(self) -> bool:
        """Whether something may still be folded in: nothing is clamped yet."""
        return self.floor == -INFINITY and self.cap == INFINITY


@dataclass
class Pool(Stage):
    """The mean (over all taps, padding included) or the largest in a window."""

    size: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    mean: bool = False


@dataclass
class Mean(Stage):
    """Of each channel, as features."""


@dataclass
class Flatten(Stage):
    """A map as features."""


@dataclass
class Staged:
    """Stages in order; value 0 is the input, `output` what comes out."""

    stages: list[Stage]
    shapes: dict[int, Shape]
    """Of each value without its batch: (channels, height, width), or (features,)."""

    output: int


def reads(stage: Stage) -> list[int]:
    """The values that a stage reads."""
    more = [stage.residual] if isinstance(stage, LinearStage) and stage.residual is not None else []
    return [stage.source, *more]
