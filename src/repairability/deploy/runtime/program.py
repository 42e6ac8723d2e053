"""What a planned network is for the kernels: a table of steps, each a row of whole numbers, and the arrays they read.

Places are numbers of floats from the beginning of the arena, unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SPARSE, DENSE, SPLIT, POOL, MEAN, FLATTEN, STORE, ROW, COLUMN = range(9)
"""Kinds of steps: a convolution (or a linear layer on many samples) by nonzeros, or four filters at a time; a map cut
into its phases; pooling; the mean of each channel, and a whole map, as features; a map as the network's output; a
linear layer on one sample, by nonzeros or whole.
"""

KIND = 0
SOURCE, TARGET, PLANE, VECTORS, TILE, HEIGHT, WIDTH, STRIDE = range(1, 9)
"""Of what is written: its plane, its row stride, how many vectors a plane holds, how many of them at a time."""

RESIDUAL, GROUPS, BLOCKS, LISTS, BIAS = range(9, 14)
"""Products: what is added (-1: nothing), groups of filters, blocks of channels, rows of `lists`, place in `biases`."""

CHANNELS, SOURCE_PLANE, SOURCE_STRIDE, ROWS, COLUMNS = range(9, 14)
"""What is read by the others."""

SCRATCH, SUBPLANE, SUBSTRIDE, SUBROWS, DOWN, ACROSS, UP, LEFT, TAPS, COUNT = range(14, 24)
"""Phases: where they lie, one phase's size, its row stride and rows; the strides and the padding (UP,
LEFT) of who reads; a pool's offsets, how many."""

FROM_INPUT = 24
FIELDS = 25

FLOOR, CAP, SCALE = range(3)

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass
class Pack:
    """Arrays that grow while a program is written; `done` joins them."""

    parts: list[NDArray[np.generic]] = field(default_factory=list)
    size: int = 0

    def add(self, values: NDArray[np.generic]) -> int:
        """Where they will begin."""
        begin = self.size
        self.parts.append(values)
        self.size += len(values)
        return begin

    def done(self, like: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.concatenate([like[:0], *self.parts])


@dataclass(frozen=True)
class Program:
    """Steps for one image each (`steps[:images]`), then those for the batch."""

    steps: Ints
    numbers: Floats
    """Of each step: floor, cap, scale."""

    lists: Ints
    """Of a group of filters and a block of channels: where its offsets and values begin, how many there are."""

    offsets: NDArray[np.int32]
    values: Floats
    biases: Floats
