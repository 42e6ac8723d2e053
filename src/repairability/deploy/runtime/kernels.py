"""The steps of a `program`, each for a team of threads that share its filters."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from repairability.deploy.runtime import compiled as made_by
from repairability.deploy.runtime import program as p
from repairability.deploy.runtime import vectors, writer
from repairability.deploy.runtime.compiled import (
    cached,
    compiled,
    dense_tile,
    meet,
    pool_tile,
    single_row,
    sparse_tile,
    total,
    turn,
    unzip,
)

LANES, SHARED, LARGEST = writer.LANES, vectors.SHARED, vectors.LARGEST
_SOURCES = zlib.crc32(b"".join(Path(str(module.__file__)).read_bytes() for module in (writer, vectors, made_by, p)))


@compiled
def _share(count: int, member: int, team: int) -> tuple[int, int]:
    return count * member // team, count * (member + 1) // team


@compiled
def _clear_borders(step: Any, arena: Any, plane: int) -> None:
    """Zeros right of each row and below the last: what a tile wrote there means nothing, and the next layer pads."""
    at = step[p.TARGET] + plane * step[p.PLANE]
    for y in range(step[p.HEIGHT]):
        for x in range(at + y * step[p.STRIDE] + step[p.WIDTH], at + (y + 1) * step[p.STRIDE]):
            arena[x] = 0.0
    for x in range(at + step[p.HEIGHT] * step[p.STRIDE], at + step[p.VECTORS] * LANES):
        arena[x] = 0.0


@compiled
def _product(step: Any, numbers: Any, program: Any, arena: Any, member: int, team: int) -> None:
    """A convolution, or a linear layer whose positions are samples: tile by tile, block by block of the channels (so
    that what a tile reads stays in the first cache), filter by filter.
    """
    _, _, lists, offsets, values, biases = program
    dense, groups, blocks = step[p.KIND] == p.DENSE, step[p.GROUPS], step[p.BLOCKS]
    filters = SHARED if dense else 1
    base, plane = arena.ctypes.data, 4 * step[p.PLANE]
    begin, end = _share(groups, member, team)
    tiles = (step[p.VECTORS] + step[p.TILE] - 1) // step[p.TILE]
    for t in range(tiles):
        here, following = _share(step[p.VECTORS], t, tiles)
        size, here = following - here, 4 * LANES * here
        source = base + 4 * step[p.SOURCE] + here
        for k in range(blocks):
            for g in range(begin, end):
                row = lists[step[p.LISTS] + k * groups + g]
                out = g * filters * plane + here
                residual = base + 4 * step[p.RESIDUAL] + out if step[p.RESIDUAL] >= 0 else 0
                bias = biases.ctypes.data + 4 * (step[p.BIAS] + g * filters)
                ends = (np.int64(k == 0), np.int64(k == blocks - 1), residual, numbers[p.FLOOR], numbers[p.CAP])
                weights = (offsets.ctypes.data + 4 * row[0], values.ctypes.data + 4 * row[1], row[2])
                target = base + 4 * step[p.TARGET] + out
                if dense:
                    dense_tile((size, target, plane, source, *weights, bias, *ends))
                else:
                    sparse_tile((size, target, plane, source, *weights, bias, *ends))
    for f in range(begin * filters, end * filters):
        _clear_borders(step, arena, f)


@compiled
def _split(step: Any, arena: Any, source: Any, start: int, channel: int, target: int) -> None:
    """A plane cut into its phases: padded row Y and column X stand in phase (Y mod s, X mod t), at the quotients, so
    that a convolution of strides s, t reads each of its taps as a run. With 1, 1: a copy with other borders.
    """
    down, by, stride = step[p.DOWN], step[p.ACROSS], step[p.SUBSTRIDE]
    rows = min(step[p.ROWS], down * step[p.SUBROWS] - step[p.UP])
    columns = min(step[p.COLUMNS], by * stride - step[p.LEFT])
    base, lanes = arena.ctypes.data, LANES
    while 2 * lanes > columns:
        lanes //= 2
    for y in range(rows):
        row = start + channel * step[p.SOURCE_PLANE] + y * step[p.SOURCE_STRIDE]
        below = y + step[p.UP]
        phase = target + (below % down) * by * step[p.SUBPLANE] + (below // down) * stride
        if by == 1:
            left = phase + step[p.LEFT]
            arena[left : left + columns] = source[row : row + columns]
            continue
        done = 0
        if by == 2 and columns >= 4:
            even = base + 4 * (phase + (step[p.LEFT] % 2) * step[p.SUBPLANE] + step[p.LEFT] // 2)
            odd = base + 4 * (phase + ((step[p.LEFT] + 1) % 2) * step[p.SUBPLANE] + (step[p.LEFT] + 1) // 2)
            done, start_of_row = columns // 2 * 2, source.ctypes.data + 4 * row
            unzip((lanes, start_of_row, even, odd, done // (2 * lanes)))
            last = done - 2 * lanes  # once more, up to the end
            unzip((lanes, start_of_row + 4 * last, even + 2 * last, odd + 2 * last, 1))
        for x in range(done, columns):
            right = x + step[p.LEFT]
            arena[phase + (right % by) * step[p.SUBPLANE] + right // by] = source[row + x]


@compiled
def _pool(step: Any, numbers: Any, offsets: Any, arena: Any, channel: int, scratch: int) -> None:
    """The largest, or the mean, over the taps of a window, from the phases in `scratch`."""
    tiles = (step[p.VECTORS] + step[p.TILE] - 1) // step[p.TILE]
    base = arena.ctypes.data
    for t in range(tiles):
        here, following = _share(step[p.VECTORS], t, tiles)
        out = base + 4 * (step[p.TARGET] + channel * step[p.PLANE] + here * LANES)
        taps = offsets.ctypes.data + 4 * step[p.TAPS]
        source = base + 4 * (scratch + here * LANES)
        pool_tile((following - here, out, source, taps, step[p.COUNT], numbers[p.SCALE]))
    _clear_borders(step, arena, channel)


@compiled
def _single(step: Any, numbers: Any, program: Any, arena: Any, member: int, team: int) -> None:
    """A linear layer on one sample: each output a sum over its nonzeros, or runs of outputs over all inputs."""
    _, _, lists, offsets, values, biases = program
    base, source = arena.ctypes.data, arena.ctypes.data + 4 * step[p.SOURCE]
    low, high = numbers[p.FLOOR], numbers[p.CAP]
    if step[p.KIND] == p.ROW:
        for f in range(*_share(step[p.GROUPS], member, team)):
            row = lists[step[p.LISTS] + f]
            out, bias = base + 4 * (step[p.TARGET] + f), biases.ctypes.data + 4 * (step[p.BIAS] + f)
            weights = (offsets.ctypes.data + 4 * row[0], values.ctypes.data + 4 * row[1], row[2])
            residual = base + 4 * (step[p.RESIDUAL] + f) if step[p.RESIDUAL] >= 0 else 0
            single_row((out, 0, source, *weights, bias, 1, 1, residual, low, high))
        return
    row = lists[step[p.LISTS]]
    tiles = (step[p.VECTORS] + step[p.TILE] - 1) // step[p.TILE]
    for t in range(*_share(tiles, member, team)):
        here, following = _share(step[p.VECTORS], t, tiles)
        size, here = following - here, 4 * LANES * here
        out = base + 4 * step[p.TARGET] + here
        matrix, taken = values.ctypes.data + 4 * row[1] + here, offsets.ctypes.data + 4 * row[0]
        bias = biases.ctypes.data + 4 * step[p.BIAS]
        sparse_tile((size, out, 0, matrix, taken, source, row[2], bias, 1, 1, bias + 4 * LANES + here, low, high))


def _made_of(sources: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """numba keeps what it compiled for as long as this file stays as it is, and what the function holds: here a
    digest of the other files that it is made of.
    """

    @cached
    def run(
        program: Any,
        begin: int,
        end: int,
        arena: Any,
        features: Any,
        samples: int,
        images: Any,
        outputs: Any,
        first: int,
        last: int,
        member: int,
        team: int,
        counter: Any,
    ) -> None:
        """Steps `begin` to `end` for images `first` to `last`, as one `member` of a `team` of threads with one arena.

        Features go to `features` [feature, sample], of which a row holds `samples`.
        """
        if sources < 0:
            return  # never
        steps, every, _, offsets, _, _ = program
        met = 0
        for image in range(first, last):
            for k in range(begin, end):
                step, numbers = steps[k], every[k]
                kind = step[p.KIND]
                if kind in (p.SPARSE, p.DENSE):
                    _product(step, numbers, program, arena, member, team)
                elif kind in (p.ROW, p.COLUMN):
                    _single(step, numbers, program, arena, member, team)
                else:
                    source = images if step[p.FROM_INPUT] else arena
                    pixels = step[p.CHANNELS] * step[p.SOURCE_PLANE]
                    start = image * pixels if step[p.FROM_INPUT] else step[p.SOURCE]
                    height, width = step[p.ROWS], step[p.COLUMNS]
                    for channel in range(*_share(step[p.CHANNELS], member, team)):
                        if kind == p.SPLIT:
                            phases = step[p.DOWN] * step[p.ACROSS] * step[p.SUBPLANE]
                            _split(step, arena, source, start, channel, step[p.SCRATCH] + channel * phases)
                        elif kind == p.POOL:
                            scratch = step[p.SCRATCH] + member * step[p.DOWN] * step[p.ACROSS] * step[p.SUBPLANE]
                            _split(step, arena, source, start, channel, scratch)
                            _pool(step, numbers, offsets, arena, channel, scratch)
                        elif kind == p.MEAN:
                            at = arena.ctypes.data + 4 * (step[p.SOURCE] + channel * step[p.SOURCE_PLANE])
                            features[step[p.TARGET] + channel * samples + image] = (
                                total((at, step[p.VECTORS])) * numbers[p.SCALE]
                            )
                        else:
                            for y in range(height):
                                row = start + channel * step[p.SOURCE_PLANE] + y * step[p.SOURCE_STRIDE]
                                to = (channel * height + y) * width
                                if kind == p.FLATTEN:
                                    for x in range(width):
                                        features[step[p.TARGET] + (to + x) * samples + image] = source[row + x]
                                else:
                                    to += image * step[p.CHANNELS] * height * width
                                    outputs[to : to + width] = source[row : row + width]
                if team > 1:
                    met += team
                    meet((counter.ctypes.data, met))

    @cached
    def turned(source: Any, rows: int, columns: int, source_row: int, target: Any, target_row: int) -> None:
        """Rows x columns numbers, transposed. Squares overlap at the ends."""
        if sources < 0:
            return  # never
        if rows < LANES or columns < LANES:
            for y in range(rows):
                for x in range(columns):
                    target[x * target_row + y] = source[y * source_row + x]
            return
        for down in range(0, rows, LANES):
            y = min(down, rows - LANES)
            for right in range(0, columns, LANES):
                x = min(right, columns - LANES)
                begin = source.ctypes.data + 4 * (y * source_row + x)
                turn((begin, 4 * source_row, target.ctypes.data + 4 * (x * target_row + y), 4 * target_row))

    return run, turned


run, turned = _made_of(_SOURCES)
