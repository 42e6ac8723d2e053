"""Diagnosis: the three curves of every layer, and on what they were measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repairability._frames import frame_of
from repairability.curves import MEASURES, Curves
from repairability.errors import InputError, unknown
from repairability.repairs import Statistics
from repairability.tables import Table, Value, csv_text


@dataclass(frozen=True, eq=False)
class Diagnosis(Value):
    """raw: the damage of pruning; residual: what a repair leaves of it; rr: the fraction left. Each a `Curves`.

    `statistics`, the dense network's moments from the same pass, spares a joint repair its own; they stay in memory and
    are not written to files.
    """

    raw: Curves
    residual: Curves
    rr: Curves
    repair: str
    observe: str
    images: int
    fingerprint: str
    statistics: Statistics | None = field(default=None, repr=False)

    def measured(self, measure: str) -> Curves:
        """The curves of one measure."""
        if measure not in MEASURES:
            raise unknown("measure", measure, MEASURES)
        return {"raw": self.raw, "residual": self.residual, "rr": self.rr}[measure]

    def table(self) -> Table:
        rows = [
            (layer, f"{s:g}", f"{raw:.4f}", f"{residual:.4f}", f"{rr:.4f}")
            for layer in self.rr
            for s, raw, residual, rr in zip(
                self.rr.grid[layer], self.raw[layer], self.residual[layer], self.rr[layer], strict=True
            )
        ]
        caption = f"repair {self.repair}, observed at the {self.observe}, {self.images} images ({self.fingerprint})"
        return Table(("layer", "sparsity", "raw", "residual", "rr"), rows, caption=caption)

    def rows(self) -> list[dict[str, object]]:
        """One tidy row per layer and sparsity."""
        same = {"repair": self.repair, "observe": self.observe, "images": self.images, "fingerprint": self.fingerprint}
        return [
            {"layer": layer, "sparsity": s, **dict(zip(MEASURES, values, strict=True)), **same}
            for layer in self.rr
            for s, *values in zip(
                *(x.tolist() for x in (self.rr.grid[layer], self.raw[layer], self.residual[layer], self.rr[layer])),
                strict=True,
            )
        ]

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Diagnosis:
        if not rows:
            raise InputError("these rows hold no diagnosis: there are none")
        try:
            layers: dict[str, list[Mapping[str, Any]]] = {}
            for row in rows:
                layers.setdefault(str(row["layer"]), []).append(row)
            grid = {name: np.array([float(row["sparsity"]) for row in of_layer]) for name, of_layer in layers.items()}
            curves = {
                measure: Curves(
                    measure, grid, {x: np.array([float(row[measure]) for row in of]) for x, of in layers.items()}
                )
                for measure in MEASURES
            }
            return cls._of(curves, rows[0])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"these rows hold no diagnosis: {error!r}") from error

    def to_dict(self) -> dict[str, Any]:
        return {
            "repair": self.repair,
            "observe": self.observe,
            "images": self.images,
            "fingerprint": self.fingerprint,
            **{measure: self.measured(measure).to_dict()["layers"] for measure in MEASURES},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Diagnosis:
        return cls._of({x: Curves.from_dict({"measure": x, "layers": data[x]}) for x in MEASURES}, data)

    @classmethod
    def _of(cls, curves: Mapping[str, Curves], about: Mapping[str, Any]) -> Diagnosis:
        return cls(
            raw=curves["raw"],
            residual=curves["residual"],
            rr=curves["rr"],
            repair=str(about["repair"]),
            observe=str(about["observe"]),
            images=int(about["images"]),
            fingerprint=str(about["fingerprint"]),
        )

    def to_csv(self) -> str:
        return csv_text(self.rows())

    @classmethod
    def from_csv(cls, text: str) -> Diagnosis:
        return cls.from_rows(list(csv.DictReader(io.StringIO(text))))

    def to_frame(self) -> Any:
        """A pandas DataFrame, one row per layer and sparsity."""
        return frame_of(self.rows())

    @classmethod
    def from_frame(cls, frame: Any) -> Diagnosis:
        return cls.from_rows(frame.to_dict("records"))
