"""What the doctor found: every parameter, every recipe; it prints as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from repairability._html import view
from repairability.calibration import COUNT
from repairability.repairs.walk import IMAGES
from repairability.tables import Table, Value, percent


@dataclass(frozen=True)
class ParameterRow:
    """One parameter (or one of its matrices): what becomes of it."""

    name: str
    kind: str  # of layer; empty where it is none
    shape: tuple[int, ...]
    share: float  # of all parameters
    pruned: bool
    why: str  # it is not pruned
    calls: int  # products with it in one pass
    norm: str  # the BatchNorm that takes the layer's output


@dataclass(frozen=True)
class RecipeRow:
    """A recipe on this network: what its repair does, and roughly what it takes."""

    recipe: str
    rule: str
    score: str
    repair: str
    does: tuple[str, ...]
    seconds: float
    megabytes: float


@dataclass(frozen=True, eq=False)
class Checkup(Value):
    """What the doctor found; prints as tables."""

    model: str
    batch: str
    output: str
    parameters: int
    prunable: int
    layers: int
    rows: tuple[ParameterRow, ...]
    recipes: tuple[RecipeRow, ...]
    notes: tuple[str, ...]
    seconds: float  # of one forward pass of the batch

    @property
    def coverage(self) -> float:
        """The share of all parameters that may be pruned."""
        return self.prunable / max(1, self.parameters)

    def table(self) -> Table:
        rows = [
            (
                *(x.name, x.kind, "x".join(map(str, x.shape)), percent(x.share)),
                "yes" if x.pruned else "",
                x.why,
                f"{x.calls}" if x.calls else "",
                x.norm,
            )
            for x in self.rows
        ]
        caption = (
            f"{self.model}: {self.layers} layers, {self.prunable:,} of {self.parameters:,} parameters may be pruned "
            f"({percent(self.coverage)}); a batch of {self.batch} takes {self.seconds:.2f} s; {self.output}"
        )
        caption += "".join(f"\nnote: {note}" for note in self.notes)
        columns = ("parameter", "kind", "shape", "share", "pruned", "why not", "calls", "norm behind")
        return Table(columns, rows, caption=caption)

    def recipes_table(self) -> Table:
        rows = [
            (x.recipe, x.rule, x.score, x.repair, "; ".join(x.does), f"{x.seconds:,.0f}", f"{x.megabytes:,.0f}")
            for x in self.recipes
        ]
        caption = f"seconds and megabytes are estimates, good to a factor of three, for {COUNT} to {IMAGES:,} samples"
        return Table(("recipe", "rule", "score", "repair", "does here", "seconds", "MB"), rows, caption=caption)

    def _repr_html_(self) -> str:
        return view([], [self.recipes_table(), self.table()])

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.recipes_table()}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "coverage": self.coverage}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Checkup:
        known = {name: value for name, value in data.items() if name != "coverage"}
        rows = tuple(ParameterRow(**{**row, "shape": tuple(row["shape"])}) for row in data["rows"])
        recipes = tuple(RecipeRow(**{**row, "does": tuple(row["does"])}) for row in data["recipes"])
        return cls(**{**known, "rows": rows, "recipes": recipes, "notes": tuple(data["notes"])})
