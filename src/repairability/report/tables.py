"""ReportData -> tables for people: captions and number formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from repairability.allocation import Allocation
from repairability.report.estimates import Estimate, estimates, how_measured, span, sparsities
from repairability.report.methods import ordered
from repairability.tables import Table, percent

if TYPE_CHECKING:
    from repairability.report.data import ReportData

TITLES = {
    "top1": "Top-1 accuracy after pruning and repair, %",
    "agreement": "Agreement with the dense network, % of images",
    "kl": "KL divergence from the dense network",
}


def short_percent(sparsity: float) -> str:
    """A sparsity for a heading: 0.95 -> '95 %', 0.925 -> '92.5 %'."""
    return f"{100 * sparsity:g} %"


def interval(bounds: Sequence[float]) -> str:
    """Two sparsities as a range: '95-95.5 %', or one when they are the same."""
    low, high = bounds
    return short_percent(low) if low == high else f"{100 * low:g}\N{EN DASH}{short_percent(high)}"


def label(value: object) -> str:
    """A row's label: a float is a sparsity, several stand with commas, anything else is as it is."""
    if isinstance(value, tuple):
        return ", ".join(map(label, value))
    return short_percent(value) if isinstance(value, float) else str(value)


def plus_minus(mean: float, error: float | None, scale: float = 100, digits: int = 2, *, signed: bool = False) -> str:
    """How a number with its error is written: '49.32 ± 0.22', `signed` '+0.12 ± 0.31'."""
    rounded = round(scale * mean, digits) + 0.0  # no negative zero
    text = f"{rounded:{'+' if signed else ''}.{digits}f}"
    return text if error is None else f"{text} ± {scale * error:.{digits}f}"


def cell(
    estimate: Estimate | None, scale: float = 100, digits: int = 2, *, signed: bool = False, mark: bool = False
) -> str:
    """Mean ± error; with `mark`, a star after what is of one seed. Nothing of None."""
    if estimate is None:
        return ""
    star = "*" if mark and estimate.seeds == 1 else ""
    return plus_minus(estimate.mean, estimate.error, scale, digits, signed=signed) + star


def accuracy(data: ReportData, measure: str = "top1") -> Table:
    """Rules by sparsities: the mean over seeds and its error, which the caption names. Also of "agreement" and "kl"."""
    lines = estimates(data, measure)
    cells = [point for line in lines.values() for point in line.values()]
    columns = [s for s in sparsities(data) if any(s in line for line in lines.values())]
    scale, digits = (1, 4) if measure == "kl" else (100, 2)
    mixed = len({point.kind for point in cells}) > 1
    rows = [
        (method.label, *(cell(line.get(s), scale, digits, mark=mixed) for s in columns))
        for method, line in lines.items()
    ]
    repairs = ", ".join(dict.fromkeys(str(row["repair"]) for row in data.results))
    caption = f"{data.model} on {data.data}: no results"
    if cells:
        n, how = span(point.n for point in cells), how_measured(cells, measure)
        caption = f"{data.model} on {data.data}, repair {repairs}, n = {n} test images; {how}"
    if data.dense is not None and measure == "top1":
        caption += f". Dense: {100 * data.dense['top1']:.2f}"
        if data.dense.get("top1_bn") is not None:
            caption += f", after BatchNorm recalibration {100 * data.dense['top1_bn']:.2f}"
    return Table(("rule", *map(short_percent, columns)), rows, TITLES.get(measure, measure), caption)


def targets(data: ReportData) -> list[float]:
    """The targets of the allocations, rising; one without a target counts by what it reached."""
    return sorted({_target(allocation) for allocation in data.allocations})


def _target(allocation: Allocation) -> float:
    return round(allocation.sparsity if allocation.target is None else allocation.target, 4)


def at_target(data: ReportData, target: float) -> dict[str, Allocation]:
    """The allocations of one target by name, in the house's order; a rule that comes twice is numbered."""
    by_rule: dict[str, list[Allocation]] = {}
    for plan in data.allocations:
        if _target(plan) == round(target, 4):
            by_rule.setdefault(plan.rule or "unnamed", []).append(plan)
    return {
        rule if i == 0 else f"{rule} #{i + 1}": plan
        for rule in ordered(by_rule)
        for i, plan in enumerate(by_rule[rule])
    }


def layers_of(allocations: Mapping[str, Allocation]) -> dict[str, int]:
    """Every layer of these allocations and its weights, in the order of the first that has it."""
    return {layer: total for plan in allocations.values() for layer, total in plan.totals.items()}


def allocations(data: ReportData, target: float) -> Table:
    """Layers by rules at one target, then each rule minus ERK where ERK is there."""
    named = at_target(data, target)
    erk: Mapping[str, float] = named.get("erk", {})
    others = [name for name in named if name != "erk"] if erk else []
    rows = []
    for layer, total in layers_of(named).items():
        kind = ["yes" if layer in data.projections else ""] if data.projections else []
        levels = [f"{plan[layer]:.4f}" if layer in plan else "" for plan in named.values()]
        differences = [
            f"{named[name][layer] - erk[layer]:+.4f}" if layer in named[name] and layer in erk else ""
            for name in others
        ]
        rows.append((layer, f"{total:,}", *kind, *levels, *differences))
    columns = ("layer", "total", *(["projection"] if data.projections else []), *named, *(f"{x} - erk" for x in others))
    reached = ", ".join(
        f"{name} {percent(plan.sparsity)} ({percent(plan.global_sparsity)} of all)" for name, plan in named.items()
    )
    title = f"Sparsity of each layer at {short_percent(target)}"
    return Table(columns, rows, title, f"{data.model}. Reached, of the prunable weights: {reached}")


def diagnosis(data: ReportData) -> Table | None:
    """Layer, sparsity, raw, residual, rr."""
    if data.diagnosis is None:
        return None
    curves = (data.diagnosis.raw, data.diagnosis.residual, data.diagnosis.rr)
    rows = [
        (layer, short_percent(s), *(f"{curve[layer][i]:.4f}" for curve in curves))
        for layer in data.diagnosis.rr
        for i, s in enumerate(data.diagnosis.rr.grid[layer])
    ]
    plain = data.diagnosis.table()
    return Table(plain.columns, rows, "Damage and what repair leaves of it", f"{data.model}: {plain.caption}")


def transition(data: ReportData) -> Table | None:
    """One row per sparsity: each series, and whether it lies in the core or the band."""
    scores = data.transition
    if scores is None:
        return None
    rows = [
        (
            short_percent(s),
            *("" if values[i] is None else f"{values[i]:.4f}" for values in scores["series"].values()),
            region(scores, s),
        )
        for i, s in enumerate(scores["sparsities"])
    ]
    bounds = [f"{name} {interval(scores[name])}" for name in ("core", "broad") if scores[name] is not None]
    caption = ", ".join([f"{data.model} on {data.data}, method {scores['method']}", *bounds])
    return Table(("sparsity", *scores["series"], "region"), rows, "Scores by sparsity", caption)


def region(scores: Mapping[str, Sequence[float] | None], sparsity: float) -> str:
    """'core', 'broad' or '' for a sparsity of a transition."""
    for name in ("core", "broad"):
        bounds = scores[name]
        if bounds is not None and bounds[0] - 1e-9 <= sparsity <= bounds[1] + 1e-9:
            return name
    return ""


def provenance(data: ReportData) -> Table | None:
    """What made these numbers."""
    if not data.provenance:
        return None
    return Table(("what", "value"), list(data.provenance.items()), "How these numbers were made")


def named_tables(data: ReportData) -> dict[str, Table]:
    """Every table the data can fill, by the name of its file."""
    tables: dict[str, Table | None] = {}
    if data.results:
        tables["accuracy"] = accuracy(data)
        for measure in ("agreement", "kl"):
            if any(row.get(measure) is not None for row in data.results):
                tables[measure] = accuracy(data, measure)
    for target in targets(data):
        tables[f"allocations_{100 * target:g}"] = allocations(data, target)
    tables |= {"diagnosis": diagnosis(data), "transition": transition(data), "provenance": provenance(data)}
    return {name: table for name, table in tables.items() if table is not None}
