"""Diagnosis: the curves of every layer, and on what they were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from repairability._html import view
from repairability._torch import Sums
from repairability.curves import MEASURES, OUTPUT, Curves, FloatArray
from repairability.diagnostics.scan import LITERAL
from repairability.errors import InputError, unknown, whole_of
from repairability.naming import layer_name
from repairability.repairs import Statistics
from repairability.tables import Table, Tidy


@dataclass(frozen=True, eq=False)
class Diagnosis(Tidy):
    """raw: the damage of pruning; residual: what a repair leaves of it; rr: the fraction left; output: the damage that
    is left where the network ends, if that was measured. Each a `Curves`.

    `statistics`, the dense network's moments from the same pass, spares a joint repair of that network, as `state`
    knows it, its own; both stay in memory and are not written to files.
    """

    raw: Curves
    residual: Curves
    rr: Curves
    repair: str
    observe: str
    images: int
    fingerprint: str
    statistics: Statistics | None = field(default=None, repr=False)
    output: Curves | None = None
    state: Sums | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.rr:
            raise InputError("a diagnosis has at least one layer, and this has none")
        for measure in self.measures:
            curves = self.measured(measure)
            if list(curves) != list(self.rr) or any(
                not np.array_equal(curves.grid[layer], self.rr.grid[layer]) for layer in self.rr
            ):
                raise InputError(f"{measure} was measured on other layers, or at other sparsities, than rr")

    @property
    def measures(self) -> tuple[str, ...]:
        """What was measured, in the order of the tables."""
        return MEASURES if self.output is None else (*MEASURES, OUTPUT)

    def measured(self, measure: str) -> Curves:
        """The curves of one measure."""
        if measure not in (*MEASURES, OUTPUT):
            raise unknown("measure", measure, (*MEASURES, OUTPUT))
        curves: Curves | None = getattr(self, measure)
        if curves is None:
            raise InputError(f"this diagnosis did not measure {measure!r}: diagnose(..., measures=({measure!r},))")
        return curves

    def table(self) -> Table:
        rows = [(layer, f"{s:g}", *(f"{value:.4f}" for value in values)) for layer, s, *values in self._points()]
        place = "the layer, in a network repaired for it" if self.observe == LITERAL else f"the {self.observe}"
        caption = f"repair {self.repair}, observed at {place}, {self.images} images ({self.fingerprint})"
        return Table(("layer", "sparsity", *self.measures), rows, caption=caption)

    def charts(self) -> list[str]:
        shown = [measure for measure in ("rr", OUTPUT) if measure in self.measures]
        return [chart for measure in shown for chart in self.measured(measure).charts()]

    def _repr_html_(self) -> str:
        words = f"repair {self.repair}, {len(self.rr)} layers, {self.images} images"
        return view(self.charts(), [], [replace(self.table(), title=f"All values: {words}")])

    def rows(self) -> list[dict[str, object]]:
        """One tidy row per layer and sparsity."""
        same = {"repair": self.repair, "observe": self.observe, "images": self.images, "fingerprint": self.fingerprint}
        return [
            {"layer": layer, "sparsity": s, **dict(zip(self.measures, values, strict=True)), **same}
            for layer, s, *values in self._points()
        ]

    def _points(self) -> Iterator[tuple[Any, ...]]:
        """(layer, sparsity, raw, residual, rr ...) of every point that was measured."""
        for layer in self.rr:
            curves = (self.rr.grid[layer], *(self.measured(measure)[layer] for measure in self.measures))
            for values in zip(*(curve.tolist() for curve in curves), strict=True):
                yield (layer, *values)

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Diagnosis:
        layers: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            layers.setdefault(layer_name(row["layer"]), []).append(row)

        def column(name: str) -> dict[str, FloatArray]:
            return {layer: np.array([float(row[name]) for row in own]) for layer, own in layers.items()}

        if len({tuple(str(row[name]) for name in ("repair", "observe", "images", "fingerprint")) for row in rows}) > 1:
            raise InputError("these rows hold several diagnoses; split them by repair and fingerprint first")
        known = [x for x in (*MEASURES, OUTPUT) if x in MEASURES or x in rows[0]]
        return cls._of({x: Curves(x, column("sparsity"), column(x)) for x in known}, rows[0])

    def to_dict(self) -> dict[str, Any]:
        return {
            "repair": self.repair,
            "observe": self.observe,
            "images": self.images,
            "fingerprint": self.fingerprint,
            **{measure: self.measured(measure).to_dict()["layers"] for measure in self.measures},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Diagnosis:
        known = [x for x in (*MEASURES, OUTPUT) if x in MEASURES or x in data]
        return cls._of({x: Curves.from_dict({"measure": x, "layers": data[x]}) for x in known}, data)

    @classmethod
    def _of(cls, curves: Mapping[str, Curves], about: Mapping[str, Any]) -> Diagnosis:
        return cls(
            raw=curves["raw"],
            residual=curves["residual"],
            rr=curves["rr"],
            repair=str(about["repair"]),
            observe=str(about["observe"]),
            images=whole_of(about["images"], "images"),
            fingerprint=str(about["fingerprint"]),
            output=curves.get(OUTPUT),
        )
