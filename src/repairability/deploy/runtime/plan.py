"""Plan: a network's program, and the memory it works in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repairability.deploy.runtime.program import Floats, Program
from repairability.deploy.runtime.rooms import ALIGNED


@dataclass
class Plan:
    """A program, the arenas it works in, and whose each step is."""

    program: Program
    images: int
    """Steps that are made image by image; those after them work on the features of the whole batch."""

    owners: list[int]
    """Of each step, the number of its stage."""

    arena: int
    fills: list[tuple[int, int, float]]
    features: int
    samples: int
    """Features of one sample lie this far apart."""

    inputs: int
    """Where features that come from outside begin, and -1 where images do."""

    outputs: tuple[int, int]
    """Where the features that go out begin and how many; (-1, floats of a map) where a map goes out."""

    def new_arena(self) -> Floats:
        made = _aligned(self.arena)
        for begin, end, fill in self.fills:
            made[begin:end] = fill
        return made

    def new_features(self) -> Floats:
        return _aligned(self.features)


def _aligned(size: int) -> Floats:
    raw = np.zeros(size + 2 * ALIGNED, np.float32)
    first = -(raw.ctypes.data // 4) % ALIGNED
    return raw[first : first + size]
