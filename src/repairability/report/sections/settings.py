"""Sections with a column per sparsity: a line for each combination of what a study varies, or for each recipe."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from repairability.experiments.record import Record
from repairability.report import charts
from repairability.report.data import ReportData
from repairability.report.estimates import estimates, sparsities
from repairability.report.sections.groups import done, ends, file_name, options_text, place_of, report_of, report_row
from repairability.report.sections.section import Section, measured
from repairability.report.tables import cell, short_percent
from repairability.tables import Table

SAME = ("model", "data", "weights", "num_classes", "image_size", "sparsity", "seed")
"""What makes no line: the network, and what the columns and the means are over."""

STAGES = ("diagnose", "statistics", "allocate", "mask", "repair")
"""What it takes to get the sparse network; loading and judging it are not of it."""

Labels = Callable[[Sequence[Record]], Mapping[str, Sequence[str]]]
"""The columns that tell lines apart, by their names: of each, what it says of each run."""


ALONE = "magnitude alone"
"""The smallest weights of the whole network, and nothing is mended: what pruning is without any of this."""


def settings(records: Sequence[Record]) -> Section:
    """A table per network. In charts the colour tells the first setting that varies, the dash the others."""
    return _by_network(records, _varied, "settings")


def recipes(records: Sequence[Record]) -> Section:
    """A table per network, a line for each recipe by its name."""
    return _by_network(records, lambda runs: {"recipe": [_recipe_name(run) for run in runs]}, "recipes")


def _recipe_name(run: Record) -> str:
    spec = run.spec
    if (spec.rule, spec.score, spec.repair) == ("global", "magnitude", "none"):
        return ALONE
    return "auto" if spec.recipe is None else spec.recipe.name


def _varied(runs: Sequence[Record]) -> dict[str, list[str]]:
    """Each setting that is not the same in all runs, with its value in each."""
    specs = [run.spec.to_dict() for run in runs]
    names = [name for name in specs[0] if name not in SAME and any(spec[name] != specs[0][name] for spec in specs)]
    return {name: [_told(spec[name]) for spec in specs] for name in names}


def _by_network(records: Sequence[Record], labels: Labels, kind: str) -> Section:
    networks: dict[str, list[Record]] = {}
    for record in done(records):
        networks.setdefault(place_of(record.spec), []).append(record)
    tables, drawn = [], {}
    for place, runs in networks.items():
        table, report = _network(place, runs, labels(runs))
        tables.append(table)
        drawn[f"{kind}_{file_name(place)}"] = partial(charts.accuracy, report)
    return Section(tables or [Table(("setting",), [], "Top-1 accuracy, %", "No runs of ours.")], drawn)


def _network(place: str, runs: Sequence[Record], labels: Mapping[str, Sequence[str]]) -> tuple[Table, ReportData]:
    lines: dict[tuple[str, ...], list[Record]] = {}
    for i, run in enumerate(runs):
        lines.setdefault(tuple(values[i] for values in labels.values()), []).append(run)
    methods = {values: ("".join(values[:1]), ", ".join(values[1:])) for values in lines}
    results = [
        {**report_row(run), "rule": rule, "repair": repair}
        for values, (rule, repair) in methods.items()
        for run in lines[values]
    ]
    report = report_of(place, runs, results)
    means = {(method.rule, method.repair): points for method, points in estimates(report).items()}
    every = [mean for line in means.values() for mean in line.values()]
    mixed, points = len({mean.kind for mean in every}) > 1, sparsities(report)
    rows = [
        (*values, *(cell(means[methods[values]].get(s), mark=mixed) for s in points), _seconds(line))
        for values, line in lines.items()
    ]
    parts = {name: {str(getattr(run.spec, name)) for run in runs} for name in ("rule", "score", "repair")}
    shared = ", ".join(f"{name} {values.pop()}" for name, values in parts.items() if len(values) == 1)
    caption = (
        "Seconds: the median of a line's runs from the diagnosis to the repaired network, beside other jobs on the "
        f"same machine. {f'In all: {shared}. ' if shared else ''}{measured(every)}"
    )
    table = Table((*labels, *map(short_percent, points), "seconds"), rows, f"{place}: top-1 accuracy, %", caption)
    return table, report


def _told(value: object) -> str:
    if isinstance(value, dict):
        return options_text(value)
    return "" if value is None else ends(value)


def _seconds(runs: Sequence[Record]) -> str:
    spent = [sum(dict(run.provenance.get("seconds") or {}).get(stage, 0.0) for stage in STAGES) for run in runs]
    return f"{statistics.median(map(float, spent)):.1f}"
