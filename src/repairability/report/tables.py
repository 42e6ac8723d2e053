"""ReportData -> tables for people: captions and number formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from repairability.allocation import Allocation
from repairability.report.estimates import Estimate, estimates, how_measured, sparsities
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


def cell(found: Estimate | None, scale: float = 100, mark: bool = False) -> str:
    """Mean ± error; with `mark`, a star after what is of one seed."""
    if found is None:
        return ""
    digits = 2 if scale == 100 else 4
    error = "" if found.error is None else f" ± {scale * found.error:.{digits}f}"
    return f"{scale * found.mean:.{digits}f}{error}{'*' if mark and found.seeds == 1 else ''}"


def accuracy(data: ReportData, measure: str = "top1") -> Table:
    """Rules by sparsities: the mean over seeds and its error, which the caption names. Also of "agreement" and "kl"."""
    found = estimates(data, measure)
    every = [each for by_sparsity in found.values() for each in by_sparsity.values()]
    columns = [s for s in sparsities(data) if any(s in by_sparsity for by_sparsity in found.values())]
    scale = 1 if measure == "kl" else 100
    mixed = len({each.kind for each in every}) > 1
    rows = [
        (method.label, *(cell(by_sparsity.get(s), scale, mixed) for s in columns))
        for method, by_sparsity in found.items()
    ]
    repairs = ", ".join(dict.fromkeys(str(row["repair"]) for row in data.results))
    caption = f"{data.model} on {data.data}: no results"
    if every:
        sizes = sorted({each.n for each in every})
        n = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        caption = f"{data.model} on {data.data}, repair {repairs}, n = {n} test images; {how_measured(every, measure)}"
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
    found = [each for each in data.allocations if _target(each) == round(target, 4)]
    named: dict[str, Allocation] = {}
    for rule in ordered(each.rule or "unnamed" for each in found):
        for i, each in enumerate(x for x in found if (x.rule or "unnamed") == rule):
            named[rule if i == 0 else f"{rule} #{i + 1}"] = each
    return named


def layers_of(allocations: Mapping[str, Allocation]) -> dict[str, int]:
    """Every layer of these allocations and its weights, in the order of the first that has it."""
    return {layer: total for each in allocations.values() for layer, total in each.totals.items()}


def allocations(data: ReportData, target: float) -> Table:
    """Layers by rules at one target, then each rule minus ERK where ERK is there."""
    named = at_target(data, target)
    others = [name for name in named if name != "erk"] if "erk" in named else []
    rows = []
    for layer, total in layers_of(named).items():
        kind = ["yes" if layer in data.projections else ""] if data.projections else []
        levels = [f"{each[layer]:.4f}" if layer in each else "" for each in named.values()]
        differences = [
            f"{named[name][layer] - named['erk'][layer]:+.4f}" if layer in named[name] and layer in named["erk"] else ""
            for name in others
        ]
        rows.append((layer, f"{total:,}", *kind, *levels, *differences))
    columns = ("layer", "total", *(["projection"] if data.projections else []), *named, *(f"{x} - erk" for x in others))
    reached = ", ".join(
        f"{name} {percent(each.sparsity)} ({percent(each.global_sparsity)} of all)" for name, each in named.items()
    )
    title = f"Sparsity of each layer at {short_percent(target)}"
    return Table(columns, rows, title, f"{data.model}. Reached, of the prunable weights: {reached}")


def diagnosis(data: ReportData) -> Table | None:
    """Layer, sparsity, raw, residual, rr."""
    if data.diagnosis is None:
        return None
    table = data.diagnosis.table()
    rows = [(layer, short_percent(float(s)), *values) for layer, s, *values in table.rows]
    return Table(table.columns, rows, "Damage and what repair leaves of it", f"{data.model}: {table.caption}")


def transition(data: ReportData) -> Table | None:
    """One row per sparsity: each series, and whether it lies in the core or the band."""
    found = data.transition
    if found is None:
        return None
    rows = [
        (
            short_percent(s),
            *("" if values[i] is None else f"{values[i]:.4f}" for values in found["series"].values()),
            region(found, s),
        )
        for i, s in enumerate(found["sparsities"])
    ]
    caption = f"{data.model} on {data.data}, method {found['method']}"
    for name in ("core", "broad"):
        if found[name] is not None:
            caption += f", {name} {interval(found[name])}"
    return Table(("sparsity", *found["series"], "region"), rows, "Scores by sparsity", caption)


def region(found: Mapping[str, Sequence[float] | None], sparsity: float) -> str:
    """'core', 'broad' or '' for a sparsity of a transition."""
    for name in ("core", "broad"):
        bounds = found[name]
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
    found: dict[str, Table | None] = {}
    if data.results:
        found["accuracy"] = accuracy(data)
        for measure in ("agreement", "kl"):
            if any(row.get(measure) is not None for row in data.results):
                found[measure] = accuracy(data, measure)
    for target in targets(data):
        found[f"allocations_{100 * target:g}"] = allocations(data, target)
    found["diagnosis"] = diagnosis(data)
    found["transition"] = transition(data)
    found["provenance"] = provenance(data)
    return {name: table for name, table in found.items() if table is not None}
