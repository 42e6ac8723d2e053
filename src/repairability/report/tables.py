"""ReportData -> tables: of each the tidy rows at full precision, and the same for people, with captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repairability.allocation import Allocation
from repairability.report.estimates import Estimate, estimates, how_measured, repairs, span, sparsities
from repairability.report.methods import ordered
from repairability.tables import Table, percent

if TYPE_CHECKING:
    from repairability.report.data import ReportData

TITLES = {
    "top1": "Top-1 accuracy after pruning and repair, %",
    "agreement": "Agreement with the dense network, % of images",
    "kl": "KL divergence from the dense network",
}
MEASURED = {"accuracy": "top1", "agreement": "agreement", "kl": "kl"}
"""A table of results and the column it tells."""

Rows = list[dict[str, Any]]


def short_percent(sparsity: float) -> str:
    """A sparsity for a heading: 0.95 -> '95 %', 0.925 -> '92.5 %'."""
    return f"{100 * sparsity:g} %"


def interval(bounds: Sequence[float]) -> str:
    """Two sparsities as a range: '95-95.5 %', or one when they are the same."""
    low, high = bounds
    return short_percent(low) if low == high else f"{100 * low:g}\N{EN DASH}{short_percent(high)}"


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


def accuracy_rows(data: ReportData, measure: str = "top1") -> Rows:
    """One row per rule, repair and sparsity: mean, error and which error it is."""
    return [
        {
            "rule": method.rule,
            "repair": method.repair,
            "sparsity": s,
            measure: point.mean,
            "error": point.error,
            "error_kind": point.kind,
            "seeds": point.seeds,
            "n": point.n,
        }
        for method, points in estimates(data, measure).items()
        for s, point in points.items()
    ]


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
    caption = f"{data.model} on {data.data}: no results"
    if cells:
        made, how = ", ".join(repairs(data)), how_measured(cells, measure)
        caption = f"{data.model} on {data.data}, repair {made}, n = {span(x.n for x in cells)} test images; {how}"
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


def allocation_rows(data: ReportData, target: float) -> Rows:
    """One row per layer, one column per rule, then each rule minus ERK where ERK is there."""
    plans = at_target(data, target)
    erk: Mapping[str, float] = plans.get("erk", {})
    others = {name: plan for name, plan in plans.items() if erk and name != "erk"}
    return [
        {"layer": layer, "total": total, "projection": layer in data.projections}
        | {name: plan.get(layer) for name, plan in plans.items()}
        | {f"{x} - erk": p[layer] - erk[layer] if layer in p and layer in erk else None for x, p in others.items()}
        for layer, total in layers_of(plans).items()
    ]


def allocations(data: ReportData, target: float) -> Table:
    """Layers by rules at one target."""
    rows = allocation_rows(data, target)
    columns = [column for column in rows[0] if column != "projection" or data.projections]
    reached = ", ".join(
        f"{name} {percent(plan.sparsity)} ({percent(plan.global_sparsity)} of all)"
        for name, plan in at_target(data, target).items()
    )
    title = f"Sparsity of each layer at {short_percent(target)}"
    return printed(rows, columns, title, f"{data.model}. Reached, of the prunable weights: {reached}")


def diagnosis(data: ReportData) -> Table:
    """Layer, sparsity, raw, residual, rr, and output where it was measured."""
    if data.diagnosis is None:
        return Table((), ())
    plain = data.diagnosis.table()
    caption = f"{data.model}: {plain.caption}"
    return printed(data.diagnosis.rows(), plain.columns, "Damage and what repair leaves of it", caption)


def transition_rows(data: ReportData) -> Rows:
    """One row per sparsity: each series, and whether it lies in the core or the band."""
    scores = data.transition
    if scores is None:
        return []
    columns = [scores["sparsities"], *scores["series"].values(), [region(scores, s) for s in scores["sparsities"]]]
    names = ("sparsity", *scores["series"], "region")
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def transition(data: ReportData) -> Table:
    """The same for people."""
    scores = data.transition
    if scores is None:
        return Table((), ())
    bounds = [f"{name} {interval(scores[name])}" for name in ("core", "broad") if scores[name] is not None]
    caption = ", ".join([f"{data.model} on {data.data}, method {scores['method']}", *bounds])
    columns = ("sparsity", *scores["series"], "region")
    return printed(transition_rows(data), columns, "Scores by sparsity", caption)


def region(scores: Mapping[str, Sequence[float] | None], sparsity: float) -> str:
    """'core', 'broad' or '' for a sparsity of a transition."""
    for name in ("core", "broad"):
        bounds = scores[name]
        if bounds is not None and bounds[0] - 1e-9 <= sparsity <= bounds[1] + 1e-9:
            return name
    return ""


def printed(rows: Rows, columns: Sequence[str], title: str, caption: str = "") -> Table:
    """These columns of the rows as people read them."""
    return Table(
        tuple(columns), [tuple(_text(column, row[column]) for column in columns) for row in rows], title, caption
    )


def _text(column: str, value: object) -> str:
    if column == "sparsity" and isinstance(value, float):
        return short_percent(value)
    if isinstance(value, float):
        return f"{value:+.4f}" if column.endswith(" - erk") else f"{value:.4f}"
    if value is None or isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:,}" if isinstance(value, int) else str(value)
