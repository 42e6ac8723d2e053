"""The report of one model: its tables and charts as a page, and its numbers at full precision as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from repairability.report import charts
from repairability.report.charts import named_charts
from repairability.report.data import ReportData
from repairability.report.drawing import PROJECTION
from repairability.report.estimates import estimates, leaders
from repairability.report.files import Contents
from repairability.report.page import Block, Card, Part, Switch, page
from repairability.report.tables import at_target, layers_of, named_tables, region, short_percent, targets
from repairability.tables import Table, csv_text

if TYPE_CHECKING:
    from altair import LayerChart

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
    parts = {
        "accuracy": ("Accuracy", "Accuracy against sparsity", _accuracy(data, tables)),
        "diagnosis": ("Diagnosis", "How repairable each layer is", _diagnosis(data, tables)),
        "allocations": ("Allocations", "Where the sparsity goes", _allocations(data, tables)),
        "transition": (
            "Transition",
            "Where the network gives way",
            [_block({"transition": charts.transition(data)}, tables, "transition")],
        ),
        "provenance": ("", "Provenance", [_block({}, tables, "provenance")]),
    }
    words = {"transition": [("advice", (data.transition or {}).get("advice") or "")]}
    if data.projections:
        words["allocations"] = [("hint", f"{PROJECTION} marks projection (shortcut) layers.")]
    shown = [
        Part(name, title, blocks, link, words.get(name, ()))
        for name, (link, title, blocks) in parts.items()
        if any(block.charts or block.tables for block in blocks)
    ]
    return page(data.title, f"{data.model} on {data.data}", cards(data), shown, named_csv(data), data.projections)


def _block(drawn: Mapping[str, LayerChart | None], tables: Mapping[str, Table], *names: str, **more: Any) -> Block:
    """The charts and tables that are there."""
    there = {name: chart for name, chart in drawn.items() if chart is not None}
    return Block(there, {name: tables[name] for name in names if name in tables}, **more)


def _accuracy(data: ReportData, tables: Mapping[str, Table]) -> list[Block]:
    repairs = dict.fromkeys(str(row["repair"]) for row in data.results)
    switch = Switch("repair", "Repair", {repair: repair for repair in [*repairs, "all"]}) if len(repairs) > 1 else None
    drawn = {"accuracy": charts.accuracy(data), "gap": charts.gap(data)}
    return [_block(drawn, tables, "accuracy", "agreement", "kl", switch=switch)]


def _diagnosis(data: ReportData, tables: Mapping[str, Table]) -> list[Block]:
    if data.diagnosis is None:
        return []
    first = "rr"
    switch = Switch("measure", "Measure", {measure: measure for measure in charts.MEASURES})
    maps = [
        _block(
            {f"heatmap_{measure}": charts.heatmap(data, measure)},
            {},
            switch=switch if measure == first else None,
            when=f"measure={measure}",
            hidden=measure != first,
        )
        for measure in charts.MEASURES
    ]
    layers = {layer: f"{layer} (projection)" if layer in data.projections else layer for layer in data.diagnosis.rr}
    of_layer = {"damage": charts.damage(data), "share": charts.share(data)}
    switch = Switch("layer", "Layer", layers, long=True)
    return [*maps, _block(of_layer, {}, switch=switch), _block({}, tables, "diagnosis", folded="All values")]


def _allocations(data: ReportData, tables: Mapping[str, Table]) -> list[Block]:
    labels = {f"{100 * target:g}": short_percent(target) for target in targets(data)}
    switch = Switch("target", "Target", labels)
    return [
        _block(
            {f"levels_{label}": charts.levels(data, target), f"layerwise_{label}": charts.layerwise(data, target)},
            tables,
            f"allocations_{label}",
            switch=None if i else switch,
            when=f"target={label}",
            hidden=i > 0,
        )
        for i, (label, target) in enumerate(zip(labels, targets(data), strict=True))
    ]


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
