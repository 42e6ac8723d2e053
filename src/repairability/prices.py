"""Prices: what each layer of a network costs at each sparsity, in weights' stead: multiply-adds, milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from repairability.allocation import Allocation
from repairability.curves import FloatArray
from repairability.errors import InputError, unknown


@dataclass(frozen=True, eq=False)
class Prices:
    """`values[layer]` at the sparsities `grid[layer]`, which rise from 0; between them on a straight line. `fixed`:
    what the rest of the network costs, whatever is pruned.
    """

    unit: str
    grid: Mapping[str, FloatArray]
    values: Mapping[str, FloatArray]
    fixed: float = 0.0

    def __post_init__(self) -> None:
        for layer, grid in self.grid.items():
            values = np.asarray(self.values.get(layer, ()), dtype=float)
            points = np.asarray(grid, dtype=float)
            if len(points) == 0 or points[0] != 0 or (np.diff(points) <= 0).any() or points[-1] > 1:
                raise InputError(f"the prices of layer {layer!r} need sparsities that rise from 0, not {list(points)}")
            if values.shape != points.shape or not np.isfinite(values).all() or (values < 0).any():
                raise InputError(f"layer {layer!r} needs one finite price for each of its {len(points)} sparsities")
        if not (np.isfinite(self.fixed) and self.fixed >= 0):
            raise InputError(f"what is fixed must be a finite price, not {self.fixed}")
        object.__setattr__(self, "grid", MappingProxyType({k: np.asarray(v, float) for k, v in self.grid.items()}))
        object.__setattr__(self, "values", MappingProxyType({k: np.asarray(self.values[k], float) for k in self.grid}))

    def at(self, layer: str, sparsity: float | FloatArray) -> FloatArray:
        if layer not in self.grid:
            raise unknown("layer with a price", layer, self.grid)
        return np.asarray(np.interp(sparsity, self.grid[layer], self.values[layer]))

    def full(self, layer: str) -> float:
        """Of the unpruned layer."""
        return float(self.at(layer, 0.0))

    def of(self, allocation: Allocation) -> float:
        """Of the allocation's layers together, without what is fixed."""
        return float(sum(self.at(layer, s) for layer, s in allocation.items()))

    def saved(self, allocation: Allocation) -> float:
        """The share of the layers' full price that is saved."""
        return 1 - self.of(allocation) / max(sum(map(self.full, allocation)), np.finfo(float).tiny)
