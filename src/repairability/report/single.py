"""The report of one model: its tables and charts as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from repairability.report import charts
from repairability.report.charts import named_charts
from repairability.report.data import ReportData
from repairability.report.drawing import ALL, PROJECTION
from repairability.report.estimates import leaders, repairs
from repairability.report.files import Contents
from repairability.report.page import Card, Page, Panel, Part, Switch
from repairability.report.recipes import furthest_apart, recipes_chart, told
from repairability.report.sheets import named_csv, named_tables
from repairability.report.tables import MEASURED, short_percent, targets
from repairability.tables import Table

if TYPE_CHECKING:
    from altair import LayerChart

    Drawn = Mapping[str, LayerChart | None]

MOST_CARDS = 6
"""Of more sparsities than these the cards show an even choice."""


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
    weighed = [_panel({}, tables, "shipped")]
    parts = [
        Part("recipes", "What a recipe is worth", _recipes(data, tables), "Recipes"),
        Part("shipped", "What it weighs and takes", weighed, "Bytes, ms"),
        Part("accuracy", "Accuracy against sparsity", _accuracy(data, tables), "Accuracy"),
        Part("diagnosis", "How repairable each layer is", _diagnosis(data, tables), "Diagnosis"),
        Part("allocations", "Where the sparsity goes", _allocations(data, tables), "Allocations", [("hint", marked)]),
        Part("transition", "Where the network gives way", core, "Transition", [("advice", advice)]),
        Part("provenance", "Provenance", origin),
    ]
    filled = [part for part in parts if any(block.charts or block.tables for block in part.panels)]
    eyebrow = f"{data.model} on {data.data}"
    return Page(data.title, eyebrow, cards(data), filled, named_csv(data), data.projections).html()


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
    options = {name: name for name in [*repairs(data), ALL]}
    switch = Switch("repair", options) if len(options) > 2 else None
    drawn = {"accuracy": charts.accuracy(data), "gap": charts.gap(data)}
    return [_panel(drawn, tables, *MEASURED, switch=switch)]


def _recipes(data: ReportData, tables: Mapping[str, Table]) -> list[Panel]:
    return [_panel({"recipes": recipes_chart(data)}, tables, "recipes")]


def _diagnosis(data: ReportData, tables: Mapping[str, Table]) -> list[Panel]:
    if data.diagnosis is None:
        return []
    by_measure = charts.heatmaps(data)
    measures = Switch("measure", {measure: measure for measure in by_measure})
    maps = [{f"heatmap_{measure}": drawn} for measure, drawn in by_measure.items()]
    names = {layer: f"{layer} (projection)" if layer in data.projections else layer for layer in data.diagnosis.rr}
    layers = Switch("layer", names, long=True)
    one_layer = {"damage": charts.damage(data), "share": charts.share(data), "felt": charts.felt(data)}
    return [
        *_cases(measures, maps, {}, ""),
        _panel(one_layer, {}, switch=layers),
        _panel({}, tables, "diagnosis", folded="All values"),
    ]


def _allocations(data: ReportData, tables: Mapping[str, Table]) -> list[Panel]:
    labels = {f"{100 * target:g}": target for target in targets(data)}
    switch = Switch("target", {label: short_percent(target) for label, target in labels.items()})
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
    apart = furthest_apart(data)
    if apart is not None:
        best, *others = apart[1]
        note = told({recipe: apart[1][recipe] for recipe in others})
        shown.append((f"Recipe {best} at {short_percent(apart[0])}", f"{100 * apart[1][best].mean:.2f} %", note))
    ranks, which = leaders(data), "Best" if apart is None else "Best rule"
    step = max(1.0, (len(ranks) - 1) / (MOST_CARDS - 1))
    for leader in [ranks[round(i * step)] for i in range(min(MOST_CARDS, len(ranks)))]:
        note = " = ".join(leader.labels)
        if leader.runner_up is not None:
            estimate, label = leader.runner_up
            note += f"; next {label} {100 * estimate.mean:.2f} %"
        shown.append((f"{which} at {short_percent(leader.sparsity)}", f"{100 * leader.estimate.mean:.2f} %", note))
    layers = data.diagnosis.rr if data.diagnosis is not None else next(iter(data.allocations), None)
    if layers is not None:
        inside = sum(layer in layers for layer in data.projections)
        shown.append(("Layers", str(len(layers)), f"{inside} of them projections" if inside else "prunable"))
    applied, measured = repairs(data), ""
    if data.diagnosis is not None:
        shown.append(("Calibration images", f"{data.diagnosis.images:,}", "without labels"))
        applied, measured = applied or [data.diagnosis.repair], f"diagnosed with {data.diagnosis.repair}"
    return [*shown, ("Repair", ", ".join(applied), measured)] if applied else shown
