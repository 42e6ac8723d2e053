"""Allocation: how sparse each layer becomes; the one rounding of a sparsity to a count, and the budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from repairability._html import dots
from repairability.errors import InputError, shortened, unknown, whole_of
from repairability.naming import ByLayer, rows_by_layer
from repairability.tables import Table, Tidy, percent


def pruned_count(total: int, sparsity: float) -> int:
    """round-half-even(sparsity * total): how many weights go. Budgets and masks both count by it."""
    return min(total, max(0, round(sparsity * total)))


def target_count(totals: Iterable[int], sparsity: float) -> int:
    """The budget of a target: the sum over layers of `pruned_count(n_l, S)`."""
    return sum(pruned_count(total, sparsity) for total in totals)


def check_sparsity(value: object, what: str = "sparsity") -> float:
    """`value` as a finite float in [0, 1], or an error that repeats it."""
    if isinstance(value, bool) or (not isinstance(value, (int, float)) and not hasattr(value, "__float__")):
        raise InputError(f"{what} must be a number between 0 and 1, not {shortened(value)}")
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    except (TypeError, ValueError, RuntimeError):  # an array of several
        raise InputError(f"{what} must be a number between 0 and 1, not {shortened(value)}") from None
    if not math.isfinite(number) or not 0 <= number <= 1:
        hint = f"; did you mean {number / 100:g}?" if 1 < number <= 100 else ""
        raise InputError(f"{what} must be between 0 and 1 (pruned / total), not {number:g}{hint}")
    return number


@dataclass(frozen=True, eq=False)
class Allocation(Tidy, ByLayer[float]):
    """An immutable mapping layer -> sparsity over exactly the layers in `totals`.

    Two budgets, never to be confused: `sparsity` is over the prunable weights (what a target means),
    `global_sparsity` over all `n_all` weights of the pruned types, the skipped layers included (what the paper
    reports as achieved). `parameters`, where known, counts everything that the model learned.
    """

    sparsities: Mapping[str, float]
    totals: Mapping[str, int]
    n_all: int
    rule: str = ""
    target: float | None = None
    parameters: int | None = None

    def __post_init__(self) -> None:
        for layer in self.sparsities:
            if layer not in self.totals:
                raise unknown("layer", layer, self.totals)
        missing = [layer for layer in self.totals if layer not in self.sparsities]
        if missing:
            raise InputError(f"the allocation gives no sparsity for {', '.join(missing)}")
        if self.n_all < sum(self.totals.values()):
            raise InputError(f"n_all = {self.n_all} is less than the {sum(self.totals.values())} prunable weights")
        checked = {
            layer: check_sparsity(self.sparsities[layer], f"the sparsity of layer {layer!r}") for layer in self.totals
        }
        object.__setattr__(self, "sparsities", MappingProxyType(checked))
        object.__setattr__(self, "totals", MappingProxyType(dict(self.totals)))

    def by_layer(self) -> Mapping[str, float]:
        return self.sparsities

    def pruned(self, layer: str) -> int:
        """How many weights of `layer` go."""
        return pruned_count(self.totals[layer], self[layer])

    @property
    def pruned_total(self) -> int:
        return sum(self.pruned(layer) for layer in self)

    @property
    def sparsity(self) -> float:
        """Pruned / prunable, in whole weights."""
        return self.pruned_total / max(1, sum(self.totals.values()))

    @property
    def global_sparsity(self) -> float:
        """Pruned / all weights of the pruned types (eq:global_sparsity), the dense stem included."""
        return self.pruned_total / max(1, self.n_all)

    @property
    def coverage(self) -> float | None:
        """The share of all parameters that may be pruned."""
        return None if self.parameters is None else sum(self.totals.values()) / max(1, self.parameters)

    def table(self) -> Table:
        rows = [
            (layer, f"{n - self.pruned(layer):,}", f"{n:,}", f"{self[layer]:.4f}") for layer, n in self.totals.items()
        ]
        asked = "" if self.target is None else f", target {percent(self.target)}"
        caption = (
            f"rule {self.rule or 'unnamed'}{asked}: {percent(self.sparsity)} of the prunable weights, "
            f"{percent(self.global_sparsity)} of all"
        )
        if self.coverage is not None:
            caption += f"; {percent(self.coverage)} of all parameters might be pruned"
        return Table(("layer", "kept", "total", "sparsity"), rows, caption=caption)

    def charts(self) -> list[str]:
        kept = {layer: total - self.pruned(layer) for layer, total in self.totals.items()}
        notes = {x: f"{percent(self[x])} pruned, {kept[x]:,} of {self.totals[x]:,} stay" for x in self}
        if not notes:
            return []
        least, most = (choose(self, key=self.__getitem__) for choose in (min, max))
        words = f"From {percent(self[least])} ({least}) to {percent(self[most])} ({most})."
        return [dots(self.sparsities, notes, "Sparsity of each layer", words)]

    def to_dict(self) -> dict[str, Any]:
        """One plain object, the one `--json` prints."""
        return {
            "rule": self.rule,
            "target": self.target,
            "sparsity": self.sparsity,
            "global_sparsity": self.global_sparsity,
            "n_all": self.n_all,
            "parameters": self.parameters,
            "layers": [
                {"name": layer, "total": n, "pruned": self.pruned(layer), "sparsity": self[layer]}
                for layer, n in self.totals.items()
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Allocation:
        layers, target = rows_by_layer(data["layers"]), data["target"]
        target = float(target) if isinstance(target, str) else target  # of a CSV
        return cls(
            {layer: row["sparsity"] for layer, row in layers.items()},
            {layer: whole_of(row["total"], f"the weights of layer {layer!r}") for layer, row in layers.items()},
            whole_of(data["n_all"], "n_all"),
            str(data["rule"]),
            None if target is None else check_sparsity(target, "the target"),
            None if data.get("parameters") is None else whole_of(data["parameters"], "parameters"),
        )

    def rows(self) -> list[dict[str, object]]:
        """One tidy row per layer; what is the same for all repeats, so rows of several allocations can be stacked."""
        same: dict[str, object] = {"rule": self.rule, "target": "" if self.target is None else self.target}
        same |= {"n_all": self.n_all, "parameters": "" if self.parameters is None else self.parameters}
        return [{**row, **same} for row in self.to_dict()["layers"]]

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Allocation:
        if len({(row["rule"], row["target"], row["n_all"]) for row in rows}) > 1:
            raise InputError("these rows hold several allocations; split them by rule and target first")
        layers = [{**row, "sparsity": float(row["sparsity"])} for row in rows]
        values = {name: rows[0].get(name) for name in ("target", "parameters")}
        empty = {name: None if value == "" else value for name, value in values.items()}
        return cls.from_dict({**rows[0], **empty, "layers": layers})
