"""Where numbers lie: maps as planes with zeros around them, so that every tap of a convolution reads one run.

A row of W numbers is followed by a gap of zeros, which pads it on the right and the next row on the left; a plane is
preceded by a lead of zeros, which pads it above and the plane before it below. So a tap (r, s) reads at a fixed
distance from where its product is written, for the whole plane at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from repairability.deploy.runtime.stages import LinearStage, Pool, Staged

Size = tuple[int, int]


def rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit


@dataclass(frozen=True)
class Layout:
    """Of maps of one size. All places are in floats; a plane begins with its lead."""

    height: int
    width: int
    stride: int
    lead: int
    vectors: int
    plane: int


@dataclass(frozen=True)
class Phases:
    """How a map is cut for what reads it with a stride, or makes another size of it (`by` = (1, 1): a padded copy).

    Padded row Y and column X stand in phase (Y mod by[0], X mod by[1]), at the quotients; rows are `stride` apart,
    as in the map that is written.
    """

    by: Size
    padding: Size
    rows: int
    stride: int
    phase: int

    @property
    def plane(self) -> int:
        return self.by[0] * self.by[1] * self.phase

    def tap(self, down: int, right: int) -> int:
        inner = (down % self.by[0]) * self.by[1] + right % self.by[1]
        return inner * self.phase + (down // self.by[0]) * self.stride + right // self.by[1]


def is_direct(stage: LinearStage, network: Staged) -> bool:
    """Whether a product reads its source where it lies: one output for each place."""
    return stage.stride == (1, 1) and network.shapes[stage.source][1:] == network.shapes[stage.target][1:]


def size_of(network: Staged, value: int) -> Size:
    _, height, width = network.shapes[value]
    return height, width


Key = tuple[int, Size, Size]


def split_key(stage: LinearStage | Pool, network: Staged) -> Key:
    """Stages of one key share their phases: (source, strides, size of the target)."""
    return stage.source, stage.stride, size_of(network, stage.target)


def reach(stage: LinearStage | Pool) -> Size:
    """How far the last tap is from the first."""
    if isinstance(stage, Pool):
        return stage.size[0] - 1, stage.size[1] - 1
    return tuple(d * (k - 1) for d, k in zip(stage.dilation, stage.weight.shape[2:], strict=True))  # type: ignore[return-value]


class Layouts:
    """The layout of each size of maps, and the phases of each key, for a network."""

    def __init__(self, network: Staged, lanes: int) -> None:
        self.network, self.lanes = network, lanes
        gaps: dict[Size, int] = {}
        leads: dict[Size, list[Size]] = {}
        self.paddings: dict[Key, Size] = {}
        split = []
        for stage in network.stages:
            if not isinstance(stage, (LinearStage, Pool)) or len(network.shapes[stage.source]) == 1:
                continue
            if isinstance(stage, LinearStage) and is_direct(stage, network):
                size = size_of(network, stage.source)
                gaps[size] = max(gaps.get(size, 0), stage.padding[1])
                leads.setdefault(size, []).append(stage.padding)
                continue
            split.append(stage)
            if isinstance(stage, LinearStage):
                key = split_key(stage, network)
                known = self.paddings.get(key, (0, 0))
                self.paddings[key] = (max(known[0], stage.padding[0]), max(known[1], stage.padding[1]))
        self.rows: dict[Key, int] = {}
        for stage in split:
            key = split_key(stage, network)
            padding = stage.padding if isinstance(stage, Pool) else self.paddings[key]
            down, right = (
                (far + around - own) // by
                for far, around, own, by in zip(reach(stage), padding, stage.padding, key[1], strict=True)
            )
            gaps[key[2]] = max(gaps.get(key[2], 0), right)
            if isinstance(stage, LinearStage):
                self.rows[key] = max(self.rows.get(key, 0), key[2][0] + down)
        sizes = {size_of(network, value) for value, shape in network.shapes.items() if len(shape) == 3}
        self.of = {size: self._layout(size, gaps.get(size, 0), leads.get(size, [])) for size in sizes}

    def _layout(self, size: Size, gap: int, paddings: list[Size]) -> Layout:
        """Rows at multiples of a vector where that costs nothing: then every third tap of 3 x 3 is aligned."""
        height, width = size
        stride = width + gap
        even = rounded(stride, self.lanes)
        if rounded(height * even, self.lanes) <= rounded(height * stride, self.lanes):
            stride = even
        lead = rounded(max([up * stride + left for up, left in paddings], default=0), self.lanes)
        vectors = rounded(height * stride, self.lanes) // self.lanes
        return Layout(height, width, stride, lead, vectors, lead + vectors * self.lanes)

    def value(self, value: int) -> Layout:
        return self.of[size_of(self.network, value)]

    def phases(self, stage: LinearStage | Pool) -> Phases:
        key = split_key(stage, self.network)
        target = self.of[key[2]]
        if isinstance(stage, Pool):
            padding, rows = stage.padding, target.height + reach(stage)[0] // key[1][0]
        else:
            padding, rows = self.paddings[key], self.rows[key]
        phase = rounded(rows * target.stride + target.stride + self.lanes, self.lanes)
        return Phases(key[1], padding, rows, target.stride, phase)
