"""The outputs of one layer at all its pruning levels, from its dense input.

The levels nest, so a layer's weights fall into disjoint bands: band k holds what stays at level k and is gone at
level k+1. The output at level k is the sum of the products of the bands k, k+1, ... So one product with the bands
stacked, and a running sum, give all levels; and the bands together hold only what the lowest level keeps.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from repairability.algebra.scratch import Scratch
from repairability.masks import magnitude_levels
from repairability.network.calls import Call
from repairability.network.layers import Layer
from repairability.network.unfold import Geometry

_CHUNK = 75_000
"""Output values per level computed at a time: few enough that reducing them stays in the cache."""

_FEW = 8
"""Fewer samples than this side by side are slower than one by one, unless a sample is a handful of positions."""

_SPARSE_COST = 6
"""A multiply-add of MKL's sparse product costs about this many of the dense one's (measured: 3.7 to 8)."""


_Levels = tuple[NDArray[np.signedinteger[Any]], NDArray[np.uint8]]


class LevelProducts:
    """Outputs of `layer` for the pruned counts `counts` (ascending, of its levels)."""

    def __init__(self, layer: Layer, counts: Sequence[int]) -> None:
        self.levels, self.channels, self.groups = len(counts), layer.outputs, layer.groups
        self.weight = layer.filters()  # [G, R, K]
        self.layer, self.counts = layer, counts
        dense_share = 1 - counts[0] / layer.total
        self.sparse = (
            self.weight.device.type == "cpu"
            and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
            and _SPARSE_COST * dense_share < self.levels
        )
        self._matrices: dict[tuple[int, ...], Tensor] = {}
        self._selected: _Levels | None = None

    def select(self) -> None:
        """Rank the weights ahead of time, before it is known what the layer's inputs are like."""
        self._selected = self._levels()

    def prepare(self, geometry: Geometry, shape: Sequence[int]) -> None:
        """Build the matrix for inputs of this shape [n, channels, *spatial] ahead of time."""
        wide = self.weight.dtype == torch.float64
        self.matrix(geometry, geometry.live_taps(shape[2:]), torch.float64 if wide else torch.float32)
        self._selected = None

    def chunks(self, call: Call, scratch: Scratch) -> Iterator[tuple[slice, Iterator[Tensor]]]:
        """The samples of the input in slices, each with its outputs [levels, n, channels, positions], float32 or wider,
        in parts along the positions.

        Only one slice's columns and one part's outputs exist at a time.
        """
        geometry, x = call.geometry, call.inputs()
        x = x if x.dtype == torch.float64 else x.float()
        spatial = x.shape[2:]
        positions = max(1, torch.Size(geometry.out_size(spatial)).numel())
        taps = geometry.live_taps(spatial)
        matrix = self.matrix(geometry, taps, x.dtype)
        bias = None if call.bias is None else call.bias.to(x.dtype)
        step = _CHUNK // (self.channels * positions)
        if step < _FEW:  # sums over positions run along memory: of one sample, or of several side by side
            step = 1 if positions >= 4 * _FEW else _FEW
        for start in range(0, len(x), step):
            part = x[start : start + step]
            columns = geometry.unfold(part, taps)
            yield slice(start, start + step), self._outputs(matrix, columns, bias, len(part), scratch)

    def _outputs(
        self, matrix: Tensor, columns: Tensor, bias: Tensor | None, samples: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        """All positions of several samples at once, or of one sample so many as are a chunk."""
        step = columns.shape[1] if samples > 1 else max(1, _CHUNK // self.channels)
        for part in columns.split(step, dim=1):  # type: ignore[no-untyped-call]
            shape = (self.levels * self.channels, part.shape[1])
            out = self._times_(scratch.take("outputs", shape, part.dtype, part.device), matrix, part)
            out = out.view(self.levels, self.channels, -1, samples)
            if bias is not None:
                out[-1] += bias[:, None, None]
            for level in range(self.levels - 2, -1, -1):
                out[level] += out[level + 1]
            yield out.permute(0, 3, 1, 2)

    def matrix(self, geometry: Geometry, taps: Sequence[tuple[int, ...]], dtype: torch.dtype) -> Tensor:
        """The bands stacked: [levels * channels, columns] as CSR, or dense per group [groups, rows, columns]."""
        numbers = tuple(geometry.tap_numbers(taps))
        if numbers not in self._matrices:
            kernel = int(np.prod(geometry.kernel, dtype=int))
            self._matrices[numbers] = self._bands(numbers, kernel, dtype)
        return self._matrices[numbers]

    def _levels(self) -> _Levels:
        """The weights that stay at level 0, by their places in the filters, ascending, and the last level of each."""
        index, last = magnitude_levels(self.layer.magnitudes(), self.counts)  # in the weight's own order
        if self.layer.turned:
            places = torch.arange(self.layer.total).view(self.layer.shape)
            order = self.layer.filters(places).flatten().numpy()  # filters' place -> weight's place
            levels = np.zeros(len(order), dtype=np.int16)  # 0: gone at level 0
            levels[index] = last.astype(np.int16) + 1
            turned = levels[order]
            index = np.flatnonzero(turned)
            last = (turned[index] - 1).astype(np.uint8)
        small = self.layer.total * self.groups <= np.iinfo(np.int32).max  # half the memory to go through
        return (index.astype(np.int32) if small else index), last

    def _bands(self, taps: tuple[int, ...], kernel: int, dtype: torch.dtype) -> Tensor:
        index, last = self._selected or self._levels()
        width = self.weight.shape[2]  # columns of one filter, all taps
        sizes = np.diff([*self.counts, self.layer.total])  # of the bands
        if len(taps) < kernel:
            live = np.zeros(kernel, dtype=bool)
            live[list(taps)] = True
            keep = np.flatnonzero(live[index - index // kernel * kernel])  # `%` takes five times as long
            index, last = index[keep], last[keep]
            sizes = np.bincount(last, minlength=self.levels)
        index = index[np.argsort(last, kind="stable")]  # a counting sort: by band, within it by index
        starts = np.concatenate([[0], np.cumsum(sizes)])
        filters = (np.arange(self.channels + 1) * width).astype(index.dtype)
        bounds = [
            starts[k] + np.searchsorted(index[starts[k] : starts[k + 1]], filters[1:]) for k in range(self.levels)
        ]
        row_ends = np.concatenate([[0], *bounds])
        lengths = np.diff(row_ends)
        columns = index - np.repeat(np.tile(filters[:-1], self.levels), lengths)
        if len(taps) < kernel:
            place = np.zeros(kernel, dtype=index.dtype)
            place[list(taps)] = np.arange(len(taps))
            channel = columns // kernel
            columns = channel * len(taps) + place[columns - channel * kernel]
        width = width // kernel * len(taps)
        groups = self.groups
        if groups > 1:  # filters of group g see the columns of its own inputs
            group = np.tile(np.arange(self.channels, dtype=index.dtype) // (self.channels // groups), self.levels)
            columns = columns + np.repeat(group * width, lengths)
        flat = self.weight.flatten()
        values = flat.index_select(0, torch.from_numpy(index).to(flat.device)).to(dtype)
        size = (self.levels * self.channels, width * groups)
        if self.sparse:
            return _csr(row_ends, columns, values, size)
        rows = torch.from_numpy(np.repeat(np.arange(size[0]), lengths)).to(values.device)
        dense = torch.zeros(size, dtype=dtype, device=values.device)
        dense[rows, torch.from_numpy(columns.astype(np.int64)).to(values.device)] = values
        return dense

    def _times_(self, out: Tensor, matrix: Tensor, columns: Tensor) -> Tensor:
        """The product, written into `out` [levels * channels, columns]."""
        groups = self.groups
        if self.sparse or groups == 1:
            return torch.addmm(out, matrix, columns, beta=0, out=out)
        by_group = out.view(self.levels, groups, self.channels // groups, -1)
        stacked = matrix.view(self.levels, groups, self.channels // groups, groups, -1)
        for group, inputs in enumerate(columns.view(groups, -1, columns.shape[1])):
            by_group[:, group] = stacked[:, group, :, group] @ inputs
        return out


def _csr(row_ends: np.ndarray, columns: np.ndarray, values: Tensor, size: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(row_ends.astype(np.int32)),
            torch.from_numpy(columns.astype(np.int32, copy=False)),
            values,
            size=size,
            check_invariants=False,
        )
