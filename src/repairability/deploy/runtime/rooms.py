"""Buffers of a plan: which value lies where, and what is used again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from repairability.deploy.runtime.layout import Layouts, is_direct, rounded, split_key
from repairability.deploy.runtime.stages import LinearStage, Mean, Pool, Stage, Staged, reads

ALIGNED = 16
"""Floats in a cache line."""


@dataclass
class Room:
    """A stretch of an arena, as large as its largest tenant; `fill` is what it holds before anything is written."""

    size: int = 0
    fill: float = 0.0
    begin: int = -1


class Rooms:
    """Rooms are shared by maps of one size alone, so that the zeros between planes stay zeros."""

    def __init__(self, network: Staged, layouts: Layouts, threads: int) -> None:
        self.place: dict[int, Room] = {}
        """Of each value that is a map in planes."""

        self.cuts: dict[Any, Room] = {}
        """Phases, by their key; a pool's, one plane for each thread, by the number of its stage."""

        self.rooms: list[Room] = []
        stages, shapes = network.stages, network.shapes
        last = {value: number for number, stage in enumerate(stages) for value in reads(stage)}
        last[network.output] = len(stages)
        free: dict[Any, list[Room]] = {}
        freed: set[int] = set()
        for number, stage in enumerate(stages):
            for value in (*reads(stage), stage.target):
                outside = value == 0 and not _needs_planes(stage, network)
                if len(shapes[value]) != 3 or value in self.place or outside:
                    continue
                layout = layouts.value(value)
                spare = free.setdefault(shapes[value][1:], [])
                if not spare:
                    spare.append(Room())
                    self.rooms.append(spare[-1])
                room = self.place[value] = spare.pop()
                room.size = max(room.size, shapes[value][0] * layout.plane + 2 * layout.lead + ALIGNED)
            if isinstance(stage, Pool):
                phases = layouts.phases(stage)
                fill = 0.0 if stage.mean else -np.inf
                self.cuts[number] = Room(threads * phases.plane + phases.phase, fill)
                self.rooms.append(self.cuts[number])
            elif isinstance(stage, LinearStage) and len(shapes[stage.source]) == 3 and not is_direct(stage, network):
                key = split_key(stage, network)
                if key not in self.cuts:
                    phases = layouts.phases(stage)
                    self.cuts[key] = Room(shapes[stage.source][0] * phases.plane + phases.phase)
                    self.rooms.append(self.cuts[key])
            for value in {*reads(stage), stage.target}:
                if value in self.place and last.get(value, -1) <= number and value not in freed:
                    freed.add(value)
                    free[shapes[value][1:]].append(self.place[value])
        self.size, self.fills = 0, list[tuple[int, int, float]]()
        for room in self.rooms:
            room.begin = self.size
            self.size += rounded(room.size, ALIGNED) + ALIGNED
            if room.fill:
                self.fills.append((room.begin, room.begin + room.size, room.fill))


def _needs_planes(stage: Stage, network: Staged) -> bool:
    """Whether the input of the network must stand in planes for this stage; what cuts it reads it as given."""
    if isinstance(stage, LinearStage):
        return is_direct(stage, network) or stage.residual == 0
    return isinstance(stage, Mean)
