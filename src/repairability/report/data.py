"""ReportData: everything one report shows, as one value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from repairability.allocation import Allocation, check_sparsity
from repairability.diagnostics import Diagnosis
from repairability.errors import InputError
from repairability.report import tables
from repairability.tables import Table, Value

RESULT_KEYS = ("rule", "repair", "sparsity", "achieved", "global_sparsity", "seed", "top1", "n")
TRANSITION_KEYS = ("method", "sparsities", "series", "core", "broad", "advice")


@dataclass(frozen=True, eq=False)
class ReportData(Value):
    """Results of one model on one data set; a part that is empty or None is left out of the report.

    Accuracies are fractions in [0, 1]. `results` holds one row per rule, repair, target sparsity and seed, with at
    least `RESULT_KEYS`; "agreement" and "kl" (against the dense network) are shown where present. `transition` has
    `TRANSITION_KEYS`; `dense` has "top1", "top1_bn" (may be None) and "n".
    """

    title: str
    model: str
    data: str
    dense: Mapping[str, Any] | None = None
    diagnosis: Diagnosis | None = None
    projections: Sequence[str] = ()
    allocations: Sequence[Allocation] = ()
    results: Sequence[Mapping[str, Any]] = ()
    transition: Mapping[str, Any] | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dense is not None:
            _check_dense(self.dense)
            object.__setattr__(self, "dense", MappingProxyType(dict(self.dense)))
        if self.transition is not None:
            _check_transition(self.transition)
            object.__setattr__(self, "transition", MappingProxyType(dict(self.transition)))
        seen = set()
        for row in self.results:
            _check_result(row)
            key = (row["rule"], row["repair"], round(row["sparsity"], 6), row["seed"])
            if key in seen:
                rule, repair, sparsity, seed = key
                raise InputError(
                    f"two results for rule {rule!r}, repair {repair!r}, sparsity {sparsity:g}, seed {seed}; "
                    "a report shows one setting, so make one report of each"
                )
            seen.add(key)
        object.__setattr__(self, "projections", tuple(self.projections))
        object.__setattr__(self, "allocations", tuple(self.allocations))
        object.__setattr__(self, "results", tuple(MappingProxyType(dict(row)) for row in self.results))
        object.__setattr__(
            self, "provenance", MappingProxyType({str(key): str(text) for key, text in self.provenance.items()})
        )

    def table(self) -> Table:
        return tables.accuracy(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "model": self.model,
            "data": self.data,
            "dense": None if self.dense is None else dict(self.dense),
            "diagnosis": None if self.diagnosis is None else self.diagnosis.to_dict(),
            "projections": list(self.projections),
            "allocations": [allocation.to_dict() for allocation in self.allocations],
            "results": [dict(row) for row in self.results],
            "transition": None if self.transition is None else dict(self.transition),
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ReportData:
        """Only title, model and data must be there."""
        diagnosis = data.get("diagnosis")
        return cls(
            title=str(data["title"]),
            model=str(data["model"]),
            data=str(data["data"]),
            dense=data.get("dense"),
            diagnosis=None if diagnosis is None else Diagnosis.from_dict(diagnosis),
            projections=[str(layer) for layer in data.get("projections") or ()],
            allocations=[Allocation.from_dict(each) for each in data.get("allocations") or ()],
            results=data.get("results") or (),
            transition=data.get("transition"),
            provenance=data.get("provenance") or {},
        )


def _check_keys(what: str, given: object, keys: Sequence[str]) -> None:
    if not isinstance(given, Mapping):
        raise InputError(f"{what} must be an object with {', '.join(keys)}, not {given!r}")
    missing = [key for key in keys if key not in given]
    if missing:
        raise InputError(f"{what} lacks {', '.join(missing)}: {dict(given)!r}")


def _check_fraction(what: str, given: object) -> None:
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not number or not 0 <= given <= 1:  # type: ignore[operator]  # `number` says so
        raise InputError(f"{what} must be a fraction between 0 and 1, not {given!r}")


def _check_count(what: str, given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InputError(f"{what} must be a number of images, not {given!r}")


def _check_dense(dense: Mapping[str, Any]) -> None:
    _check_keys("dense", dense, ("top1", "n"))
    _check_fraction("dense top1", dense["top1"])
    if dense.get("top1_bn") is not None:
        _check_fraction("dense top1_bn", dense["top1_bn"])
    _check_count("dense n", dense["n"])


def _check_result(row: Mapping[str, Any]) -> None:
    _check_keys("a result", row, RESULT_KEYS)
    for key in ("sparsity", "achieved", "global_sparsity"):
        check_sparsity(row[key], f"the {key} of a result")
    _check_fraction("the top1 of a result", row["top1"])
    _check_count("the n of a result", row["n"])


def _check_transition(transition: Mapping[str, Any]) -> None:
    _check_keys("transition", transition, TRANSITION_KEYS)
    if not isinstance(transition["series"], Mapping):
        raise InputError(f"the series of a transition must be an object, not {transition['series']!r}")
    for s in transition["sparsities"]:
        check_sparsity(s, "a sparsity of the transition")
    for name, values in transition["series"].items():
        if len(values) != len(transition["sparsities"]):
            raise InputError(f"series {name!r} has {len(values)} values for {len(transition['sparsities'])} sparsities")
        if not all(value is None or math.isfinite(value) for value in values):
            raise InputError(f"series {name!r} of the transition holds nan or inf; write null: {list(values)}")
    for key in ("core", "broad"):
        if transition[key] is not None and len(transition[key]) != 2:
            raise InputError(f"the {key} of a transition must be [low, high] or null, not {transition[key]!r}")
