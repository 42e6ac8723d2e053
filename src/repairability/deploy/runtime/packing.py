"""Weights as the kernels read them: for each group of filters and block of channels, offsets and values."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repairability.deploy.runtime.program import Floats, Ints
from repairability.deploy.runtime.stages import Unreadable

FIRST_CACHE = 32 * 1024
"""Bytes of the first cache that a tile's inputs may take; smaller than any machine's, for the weights pass through."""

FEWEST = 10
"""Weights a filter should have in a block, for its sums rest in memory between blocks."""


@dataclass(frozen=True)
class Packed:
    """`lists` [blocks * groups, 3]: where offsets and values begin, how many; blocks outermost."""

    lists: Ints
    offsets: NDArray[np.int32]
    values: Floats
    groups: int
    blocks: int


def channel_blocks(channels: int, bytes_each: int, most: int) -> int:
    """How many blocks, so that the inputs of one stay in the first cache."""
    together = max(1, FIRST_CACHE // bytes_each)
    return max(1, min(-(-channels // together), most))


def pack_sparse(weight: Floats, taps: Ints, plane: int, groups: int, bytes_each: int = 0) -> Packed:
    """Of weight [filters, channels, taps] the nonzeros. A filter of a group reads the group's channels alone. Without
    `bytes_each` the channels are not cut into blocks.
    """
    filters, channels, _ = weight.shape
    f, c, t = np.nonzero(weight)
    values = weight[f, c, t]
    c = c + (f // (filters // groups)) * channels
    blocks = channel_blocks(channels, bytes_each, len(f) // filters // FEWEST) if bytes_each and groups == 1 else 1
    block = c * blocks // channels if blocks > 1 else np.zeros_like(c)
    order = np.lexsort((t, c, f, block))
    counts = np.bincount(block * filters + f, minlength=blocks * filters)
    begins = np.cumsum(counts) - counts
    lists = np.stack([begins, begins, counts], axis=1)
    return Packed(lists, _offsets((c * plane + taps[t])[order]), values[order], filters, blocks)


def pack_dense(weight: Floats, taps: Ints, plane: int, shared: int, bytes_each: int) -> Packed:
    """All weights of `shared` filters at a time, which read the same places."""
    filters, channels, count = weight.shape
    groups = filters // shared
    blocks = channel_blocks(channels, bytes_each, channels)
    edges = [channels * k // blocks for k in range(blocks + 1)]
    grouped = weight[: groups * shared].reshape(groups, shared, channels, count).transpose(0, 2, 3, 1)
    parts, lists, at = [], [], 0
    for begin, end in itertools.pairwise(edges):
        size = (end - begin) * count
        for g in range(groups):
            lists.append((begin * count, at, size))
            parts.append(grouped[g, begin:end].ravel())
            at += size * shared
    offsets = np.arange(channels)[:, None] * plane + taps
    return Packed(np.array(lists), _offsets(offsets.ravel()), np.concatenate(parts), groups, blocks)


def _offsets(places: Ints) -> NDArray[np.int32]:
    """In bytes."""
    if len(places) and np.abs(places).max() >= 2**29:
        raise Unreadable("a map is too large for offsets of 32 bits")
    return (4 * places).astype(np.int32)
