"""ReportData -> tidy rows at full precision, for CSV; the names are those of `tables.named_tables`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repairability.report.estimates import estimates
from repairability.report.tables import at_target, layers_of, region, targets
from repairability.tables import csv_text

if TYPE_CHECKING:
    from repairability.report.data import ReportData

Rows = list[dict[str, object]]


def accuracy(data: ReportData, measure: str = "top1") -> Rows:
    """One row per rule, repair and sparsity: mean, error and which error it is."""
    return [
        {
            "rule": method.rule,
            "repair": method.repair,
            "sparsity": s,
            measure: found.mean,
            "error": "" if found.error is None else found.error,
            "error_kind": found.kind,
            "seeds": found.seeds,
            "n": found.n,
        }
        for method, by_sparsity in estimates(data, measure).items()
        for s, found in by_sparsity.items()
    ]


def allocations(data: ReportData, target: float) -> Rows:
    """One row per layer, one column per rule, then each rule minus ERK."""
    named = at_target(data, target)
    rows = []
    for layer, total in layers_of(named).items():
        row: dict[str, object] = {"layer": layer, "total": total, "projection": layer in data.projections}
        row |= {name: each.get(layer, "") for name, each in named.items()}
        if "erk" in named:
            both = {name: layer in each and layer in named["erk"] for name, each in named.items() if name != "erk"}
            row |= {f"{x} - erk": named[x][layer] - named["erk"][layer] if both[x] else "" for x in both}
        rows.append(row)
    return rows


def transition(data: ReportData) -> Rows:
    """One row per sparsity."""
    found = data.transition
    if found is None:
        return []
    return [
        {
            "sparsity": s,
            **{name: "" if values[i] is None else values[i] for name, values in found["series"].items()},
            "region": region(found, s),
        }
        for i, s in enumerate(found["sparsities"])
    ]


def results(data: ReportData) -> Rows:
    """Every run as it came, with the keys of all of them."""
    keys = dict.fromkeys(key for row in data.results for key in row)
    return [{key: row.get(key, "") for key in keys} for row in data.results]


def named_csv(data: ReportData) -> dict[str, str]:
    """Every table as CSV, and `results`, the single runs."""
    found: dict[str, Rows] = {"results": results(data), "accuracy": accuracy(data)}
    found |= {measure: accuracy(data, measure) for measure in ("agreement", "kl")}
    found |= {f"allocations_{100 * target:g}": allocations(data, target) for target in targets(data)}
    found["diagnosis"] = [] if data.diagnosis is None else data.diagnosis.rows()
    found["transition"] = transition(data)
    found["provenance"] = [{"what": key, "value": text} for key, text in data.provenance.items()]
    return {name: csv_text(rows) for name, rows in found.items() if rows}
