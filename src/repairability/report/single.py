"""The report of one model: its tables and charts as a page, and its numbers at full precision as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from repairability.report import charts
from repairability.report.charts import named_charts
from repairability.report.data import ReportData
from repairability.report.drawing import ALL, PROJECTION
from repairability.report.estimates import estimates, leaders
from repairability.report.files import Contents
from repairability.report.page import Card, Panel, Part, Switch, page
from repairability.report.tables import at_target, layers_of, named_tables, region, short_percent, targets
from repairability.tables import Table, csv_text

if TYPE_CHECKING:
    from altair import LayerChart

    Drawn = Mapping[str, LayerChart | None]

MOST_CARDS = 6
"""Of more sparsities than these the cards show an even choice."""

MEASURED = {"accuracy": "top1", "agreement": "agreement", "kl": "kl"}
"""A table of results and the column it tells."""

Rows = list[dict[str, object]]


def contents(data: ReportData) -> Contents:
    """What the formats write of it."""
    return Contents(
        partial(report_page, data), partial(named_tables, data), partial(named_csv, data), partial(named_charts, data)
    )


def report_page(data: ReportData) -> str:
    """The page, of the parts that the data can fill."""
    tables = named_tables(data)
    advice = (data.transition or {}).get("advice") or ""
    marked = f"{PROJECTION} marks projection (shortcut) layers." if data.projections else ""
    core = [_panel({"transition": charts.transition(data)}, tables, "transition")]
    origin = [_panel({}, tables, "provenance")]
    parts = [
        Part("accuracy", "Accuracy against sparsity", _accuracy(data, tables), "Accuracy"),
        Part("diagnosis", "How repairable each layer is", _diagnosis(data, tables), "Diagnosis"),
        Part("allocations", "Where the sparsity goes", _allocations(data, tables), "Allocations", [("hint", marked)]),
        Part("transition", "Where the network gives way", core, "Transition", [("advice", advice)]),
        Part("provenance", "Provenance", origin),
    ]
    filled = [part for part in parts if any(block.charts or block.tables for block in part.panels)]
    return page(data.title, f"{data.model} on {data.data}", cards(data), filled, named_csv(data), data.projections)


def _panel(drawn: Drawn, tables: Mapping[str, Table], *names: str, **more: Any) -> Panel:
    """The charts and tables that are there."""
    there = {name: chart for name, chart in drawn.items() if chart is not None}
    return Panel(there, {name: tables[name] for name in names if name in tables}, **more)


def _cases(switch: Switch, drawn: Sequence[Drawn], tables: Mapping[str, Table], prefix: str) -> list[Panel]:
    """A block for each option of a switch, with the table of its name; the page shows one, at first the first."""
    return [
        _panel(case, tables, f"{prefix}{value}", switch=None if i else switch, when=f"{switch.name}={value}")
        for i, (value, case) in enumerate(zip(switch.options, drawn, strict=True))
    ]


def _accuracy(data: ReportData, tables: Mapping[str, Table]) -> list[Panel]:
    repairs = list(dict.fromkeys(str(row["repair"]) for row in data.results))
    switch = Switch("repair", "Repair", {name: name for name in [*repairs, ALL]}) if len(repairs) > 1 else None
    drawn = {"accuracy": charts.accuracy(data), "gap": charts.gap(data)}
    return [_panel(drawn, tables, *MEASURED, switch=switch)]


def _diagnosis(data: ReportData, tables: Mapping[str, Table]) -> list[Panel]:
    if data.diagnosis is None:
        return []
    measures = Switch("measure", "Measure", {measure: measure for measure in charts.HEATMAPS})
    maps = [{f"heatmap_{measure}": charts.heatmap(data, measure)} for measure in charts.HEATMAPS]
    names = {layer: f"{layer} (projection)" if layer in data.projections else layer for layer in data.diagnosis.rr}
    layers = Switch("layer", "Layer", names, long=True)
    return [
        *_cases(measures, maps, {}, ""),
        _panel({"damage": charts.damage(data), "share": charts.share(data)}, {}, switch=layers),
        _panel({}, tables, "diagnosis", folded="All values"),
    ]


def _allocations(data: ReportData, tables: Mapping[str, Table]) -> list[Panel]:
    labels = {f"{100 * target:g}": target for target in targets(data)}
    switch = Switch("target", "Target", {label: short_percent(target) for label, target in labels.items()})
    drawn = [
        {f"levels_{label}": charts.levels(data, target), f"layerwise_{label}": charts.layerwise(data, target)}
        for label, target in labels.items()
    ]
    return _cases(switch, drawn, tables, "allocations_")


def cards(data: ReportData) -> list[Card]:
    """The few numbers to see first."""
    shown = []
    if data.dense is not None:
        bn = data.dense.get("top1_bn")
        note = f"n = {data.dense['n']:,}" + ("" if bn is None else f"; BN recalibrated {100 * bn:.2f} %")
        shown.append(("Dense top-1", f"{100 * data.dense['top1']:.2f} %", note))
    ranks = leaders(data)
    step = max(1.0, (len(ranks) - 1) / (MOST_CARDS - 1))
    for leader in [ranks[round(i * step)] for i in range(min(MOST_CARDS, len(ranks)))]:
        note = " = ".join(leader.labels)
        if leader.runner_up is not None:
            estimate, label = leader.runner_up
            note += f"; next {label} {100 * estimate.mean:.2f} %"
        shown.append((f"Best at {short_percent(leader.sparsity)}", f"{100 * leader.estimate.mean:.2f} %", note))
    layers = data.diagnosis.rr if data.diagnosis is not None else next(iter(data.allocations), None)
    if layers is not None:
        inside = sum(layer in layers for layer in data.projections)
        shown.append(("Layers", str(len(layers)), f"{inside} of them projections" if inside else "prunable"))
    repairs = list(dict.fromkeys(str(row["repair"]) for row in data.results))
    measured = ""
    if data.diagnosis is not None:
        shown.append(("Calibration images", f"{data.diagnosis.images:,}", "without labels"))
        repairs, measured = repairs or [data.diagnosis.repair], f"diagnosed with {data.diagnosis.repair}"
    return [*shown, ("Repair", ", ".join(repairs), measured)] if repairs else shown


def named_csv(data: ReportData) -> dict[str, str]:
    """Every table of `named_tables` as tidy rows, and `results`, the single runs with the keys of all of them."""
    keys = dict.fromkeys(key for row in data.results for key in row)
    rows: dict[str, Rows] = {"results": [{key: row.get(key, "") for key in keys} for row in data.results]}
    rows |= {measure: accuracy_rows(data, column) for measure, column in MEASURED.items()}
    rows |= {f"allocations_{100 * target:g}": allocation_rows(data, target) for target in targets(data)}
    rows["diagnosis"] = [] if data.diagnosis is None else data.diagnosis.rows()
    rows["transition"] = transition_rows(data)
    rows["provenance"] = [{"what": key, "value": text} for key, text in data.provenance.items()]
    return {name: csv_text(lines) for name, lines in rows.items() if lines}


def accuracy_rows(data: ReportData, measure: str = "top1") -> Rows:
    """One row per rule, repair and sparsity: mean, error and which error it is."""
    return [
        {
            "rule": method.rule,
            "repair": method.repair,
            "sparsity": s,
            measure: point.mean,
            "error": "" if point.error is None else point.error,
            "error_kind": point.kind,
            "seeds": point.seeds,
            "n": point.n,
        }
        for method, points in estimates(data, measure).items()
        for s, point in points.items()
    ]


def allocation_rows(data: ReportData, target: float) -> Rows:
    """One row per layer, one column per rule, then each rule minus ERK."""
    plans = at_target(data, target)
    erk = plans.get("erk")
    rows = []
    for layer, total in layers_of(plans).items():
        row: dict[str, object] = {"layer": layer, "total": total, "projection": layer in data.projections}
        row |= {name: plan.get(layer, "") for name, plan in plans.items()}
        for name, plan in plans.items():
            if erk is not None and plan is not erk:
                row[f"{name} - erk"] = plan[layer] - erk[layer] if layer in plan and layer in erk else ""
        rows.append(row)
    return rows


def transition_rows(data: ReportData) -> Rows:
    """One row per sparsity."""
    scores = data.transition
    if scores is None:
        return []
    rows: Rows = []
    for i, s in enumerate(scores["sparsities"]):
        values = {name: "" if series[i] is None else series[i] for name, series in scores["series"].items()}
        rows.append({"sparsity": s, **values, "region": region(scores, s)})
    return rows
