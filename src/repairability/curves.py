"""Curves: for each layer, a grid of sparsities and one measure over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from repairability._html import heatmap
from repairability.errors import InputError
from repairability.naming import ByLayer, rows_by_layer
from repairability.tables import Table, Value

FloatArray = NDArray[np.float64]

MEASURES = ("raw", "residual", "rr")
"""What a diagnosis always measures of each layer, in the order of its tables."""

OUTPUT = "output"
"""What it measures beside these where it is asked to: it takes passes of its own."""

TITLES_OF_MEASURES = {
    "rr": "rr: share of the damage left after repair",
    "raw": "raw: damage of pruning",
    "residual": "residual: damage left after repair",
    "output": "output: damage at the network's output after repair",
}
"""What a chart of a measure is called."""


@runtime_checkable
class Measured(Protocol):
    """What a rule is given: the curves of one measure, or a diagnosis, which has several."""

    def measured(self, measure: str) -> Curves: ...


@dataclass(frozen=True, eq=False)
class Curves(Value, ByLayer[FloatArray]):
    """`curves[layer]` is the measure over `curves.grid[layer]`; grids may differ from layer to layer.

    `measure` says what is measured ("raw", "residual", "rr", or a name of the caller's).
    """

    measure: str
    grid: Mapping[str, FloatArray]
    data: Mapping[str, FloatArray]

    def __post_init__(self) -> None:
        if set(self.grid) != set(self.data):
            raise InputError(f"grid and values name different layers: {sorted(set(self.grid) ^ set(self.data))}")
        grid = {layer: _frozen(points) for layer, points in self.grid.items()}
        values = {layer: _frozen(self.data[layer]) for layer in grid}
        for layer, points in grid.items():
            if points.ndim != 1 or not len(points) or points.shape != values[layer].shape:
                raise InputError(
                    f"layer {layer!r}: a grid of shape {points.shape} needs as many values, not {values[layer].shape}"
                )
            if not (np.isfinite(points).all() and points[0] >= 0 and points[-1] <= 1 and (np.diff(points) > 0).all()):
                raise InputError(f"layer {layer!r}: a grid must rise within [0, 1], not {points.tolist()}")
            if not np.isfinite(values[layer]).all():
                raise InputError(f"layer {layer!r}: {self.measure} holds nan or inf: {values[layer].tolist()}")
        object.__setattr__(self, "grid", MappingProxyType(grid))
        object.__setattr__(self, "data", MappingProxyType(values))

    @classmethod
    def on_grid(cls, measure: str, grid: ArrayLike, values: Mapping[str, ArrayLike]) -> Curves:
        """Curves whose layers share one grid."""
        points = _frozen(grid)
        return cls(measure, dict.fromkeys(values, points), {layer: _frozen(v) for layer, v in values.items()})

    def by_layer(self) -> Mapping[str, FloatArray]:
        return self.data

    def measured(self, measure: str) -> Curves:
        """These curves, if they are of that measure."""
        if self.measure != measure:
            raise InputError(f"curves of {measure!r} are needed, and those of {self.measure!r} were given")
        return self

    def at(self, layer: str, sparsity: float) -> float:
        """The measured value at exactly this sparsity; one that was not measured is an error."""
        values = self[layer]
        hits = np.flatnonzero(self.grid[layer] == sparsity)
        if not hits.size:
            raise InputError(f"layer {layer!r} was not measured at {sparsity:g}, only at {self.grid[layer].tolist()}")
        return float(values[hits[0]])

    def between(self, layer: str, sparsity: float, unpruned: float = 1.0) -> float:
        """Linear between the measured points, from `unpruned` at sparsity 0 (1 for rr); refused above the grid."""
        values, grid = self[layer], self.grid[layer]
        if sparsity > grid[-1]:
            raise InputError(f"layer {layer!r} at {sparsity:g} is above the grid's top, {grid[-1]:g}")
        if grid[0] > 0:
            grid, values = np.insert(grid, 0, 0.0), np.insert(values, 0, unpruned)
        return float(np.interp(sparsity, grid, values))

    def restricted(self, grid: Mapping[str, Sequence[float]]) -> Curves:
        """The same curves at these points of each layer only, where they were measured."""
        keep = {layer: np.isin(points, grid[layer]) for layer, points in self.grid.items()}
        return Curves(
            self.measure,
            {layer: self.grid[layer][keep[layer]] for layer in self},
            {layer: self[layer][keep[layer]] for layer in self},
        )

    def shuffled(self, random: np.random.Generator) -> Curves:
        """The same curves, dealt to the layers at random: what a detector must not be able to do without."""
        names = list(self)
        other = dict(zip(names, (names[i] for i in random.permutation(len(names))), strict=True))
        return Curves(self.measure, {x: self.grid[other[x]] for x in names}, {x: self[other[x]] for x in names})

    def charts(self) -> list[str]:
        rows = {x: dict(zip(self.grid[x].tolist(), self[x].tolist(), strict=True)) for x in self}
        points = [(value, layer, s) for layer, values in rows.items() for s, value in values.items()]
        if not points:
            return []
        (least, low, at), (most, high, above) = min(points), max(points)
        words = f"Least {least:.3g} ({low} at {100 * at:g} %), most {most:.3g} ({high} at {100 * above:g} %)."
        if self.measure == "rr":
            words += " Blue: below 1, the repair mends; red: above 1, it does harm."
        title = TITLES_OF_MEASURES.get(self.measure, self.measure)
        return [heatmap(rows, title, words, neutral=1.0 if self.measure == "rr" else None)]

    def table(self) -> Table:
        points = sorted({float(s) for grid in self.grid.values() for s in grid})
        rows = []
        for layer in self:
            known = dict(zip(self.grid[layer].tolist(), self[layer].tolist(), strict=True))
            rows.append((layer, *(f"{known[s]:.4f}" if s in known else "" for s in points)))
        return Table((self.measure, *(f"{s:g}" for s in points)), rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "measure": self.measure,
            "layers": [{"name": x, "grid": self.grid[x].tolist(), "values": self[x].tolist()} for x in self],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Curves:
        layers = rows_by_layer(data["layers"])
        return cls(
            str(data["measure"]),
            {layer: _frozen(row["grid"]) for layer, row in layers.items()},
            {layer: _frozen(row["values"]) for layer, row in layers.items()},
        )


def _frozen(values: ArrayLike) -> FloatArray:
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array
