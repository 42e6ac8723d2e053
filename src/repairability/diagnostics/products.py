"""The outputs of one layer at all its pruning levels, from its dense input.

The levels nest, so a layer's weights fall into disjoint bands: band k holds what stays at level k and is gone at
level k+1. The output at level k is the sum of the products of the bands k, k+1, ... So one product with the bands
stacked, and a running sum, give all levels; and the bands together hold only what the lowest level keeps.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from repairability.masks import magnitude_levels
from repairability.network.layers import Layer, bias_of
from repairability.network.unfold import Geometry

_CHUNK = 75_000
"""Output values per level computed at a time: few enough that reducing them stays in the cache."""

_SPARSE_COST = 6
"""A multiply-add of MKL's sparse product costs about this many of the dense one's (measured: 3.7 to 8)."""


class LevelProducts:
    """Outputs of `layer` for the pruned counts `counts` (ascending, of its levels)."""

    def __init__(self, layer: Layer, module: nn.Module, counts: Sequence[int]) -> None:
        self.geometry = Geometry.of(layer.name, module)
        self.levels, self.channels = len(counts), layer.shape[0]
        self.weight = layer.weight.detach()
        self.bias = bias_of(module)
        self.layer, self.counts = layer, counts
        dense_share = 1 - counts[0] / layer.total
        self.sparse = (
            self.weight.device.type == "cpu"
            and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
            and _SPARSE_COST * dense_share < self.levels
        )
        self._matrices: dict[tuple[int, ...], Tensor] = {}

    def prepare(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Build the matrix for inputs of this shape ahead of time."""
        spatial = self.geometry.batched(torch.empty(shape, device="meta")).shape[2:]
        self.matrix(self.geometry.live_taps(spatial), torch.float64 if dtype == torch.float64 else torch.float32)

    def chunks(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The samples of the input in slices, each with its outputs [levels, n, channels, positions], float32 or wider.

        Only one slice's columns and outputs exist at a time.
        """
        x = self.geometry.batched(x)
        x = x if x.dtype == torch.float64 else x.float()
        spatial = x.shape[2:]
        positions = max(1, torch.Size(self.geometry.out_size(spatial)).numel())
        taps = self.geometry.live_taps(spatial)
        matrix = self.matrix(taps, x.dtype)
        step = max(1, _CHUNK // (self.channels * positions))
        for start in range(0, len(x), step):
            part = x[start : start + step]
            columns = self.geometry.unfold(part, taps)
            out = self._times(matrix, columns).view(self.levels, self.channels, positions, len(part))
            if self.bias is not None:
                out[-1] += self.bias.to(out.dtype)[:, None, None]
            for level in range(self.levels - 2, -1, -1):
                out[level] += out[level + 1]
            yield slice(start, start + step), out.permute(0, 3, 1, 2)

    def matrix(self, taps: Sequence[tuple[int, ...]], dtype: torch.dtype) -> Tensor:
        """The bands stacked: [levels * channels, columns] as CSR, or dense per group [groups, rows, columns]."""
        numbers = tuple(self.geometry.tap_numbers(taps))
        if numbers not in self._matrices:
            self._matrices[numbers] = self._bands(numbers, dtype)
        return self._matrices[numbers]

    def _bands(self, taps: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        flat = self.weight.flatten()
        index, last = magnitude_levels(self.layer.magnitudes(), self.counts)
        kernel = int(np.prod(self.geometry.kernel, dtype=int))
        width = self.weight[0].numel()  # columns of one filter, all taps
        if len(taps) < kernel:
            live = np.zeros(kernel, dtype=bool)
            live[list(taps)] = True
            keep = np.tile(live, width // kernel * self.channels)[index]
            index, last = index[keep], last[keep]
        order = np.argsort(last, kind="stable")  # a counting sort: by band, within it by index
        index = index[order]
        starts = np.searchsorted(last[order], np.arange(self.levels + 1))
        filters = np.arange(self.channels + 1) * width
        bounds = [
            starts[k] + np.searchsorted(index[starts[k] : starts[k + 1]], filters[1:]) for k in range(self.levels)
        ]
        row_ends = np.concatenate([[0], *bounds])
        lengths = np.diff(row_ends)
        columns = index - np.repeat(np.tile(filters[:-1], self.levels), lengths)
        if len(taps) < kernel:
            place = np.zeros(kernel, dtype=np.int64)
            place[list(taps)] = np.arange(len(taps))
            columns = columns // kernel * len(taps) + place[columns % kernel]
        width = width // kernel * len(taps)
        groups = self.geometry.groups
        if groups > 1:  # filters of group g see the columns of its own inputs
            group = np.tile(np.arange(self.channels) // (self.channels // groups), self.levels)
            columns = columns + np.repeat(group * width, lengths)
        values = flat[torch.from_numpy(index).to(flat.device)].to(dtype)
        size = (self.levels * self.channels, width * groups)
        if self.sparse:
            return _csr(row_ends, columns, values, size)
        rows = torch.from_numpy(np.repeat(np.arange(size[0]), lengths)).to(values.device)
        dense = torch.zeros(size, dtype=dtype, device=values.device)
        dense[rows, torch.from_numpy(columns).to(values.device)] = values
        return dense

    def _times(self, matrix: Tensor, columns: Tensor) -> Tensor:
        groups = self.geometry.groups
        if self.sparse or groups == 1:
            return matrix @ columns
        out = columns.new_empty((self.levels, groups, self.channels // groups, columns.shape[1]))
        stacked = matrix.view(self.levels, groups, self.channels // groups, groups, -1)
        for group, inputs in enumerate(columns.view(groups, -1, columns.shape[1])):
            out[:, group] = stacked[:, group, :, group] @ inputs
        return out.view(self.levels * self.channels, -1)


def _csr(row_ends: np.ndarray, columns: np.ndarray, values: Tensor, size: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(row_ends.astype(np.int32)),
            torch.from_numpy(columns.astype(np.int32)),
            values,
            size=size,
            check_invariants=False,
        )
