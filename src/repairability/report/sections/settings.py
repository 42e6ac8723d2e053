"""The section that compares settings: one line for each combination of what a study varies, one column per sparsity."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from repairability.experiments.store import Record
from repairability.report import charts
from repairability.report.data import ReportData
from repairability.report.estimates import over_seeds
from repairability.report.sections.groups import (
    data_name,
    done,
    ends,
    file_name,
    model_name,
    options_text,
    report_of,
    report_row,
)
from repairability.report.sections.section import Section, measured
from repairability.report.tables import cell, short_percent
from repairability.tables import Table

SAME = ("model", "data", "weights", "num_classes", "image_size", "sparsity", "seed")
"""What makes no line: the network, and what the columns and the means are over."""

Lines = dict[tuple[str, ...], list[Record]]
"""The runs of each combination of values."""

STAGES = ("diagnose", "statistics", "allocate", "mask", "repair")
"""What it takes to get the sparse network; loading and judging it are not of it."""


def settings(records: Sequence[Record]) -> Section:
    """A table per network. In charts the colour tells the first setting that varies, the dash the others."""
    networks: dict[str, list[Record]] = {}
    for record in done(records):
        place = f"{model_name(record.spec.model)} on {data_name(record.spec.data)}"
        networks.setdefault(place, []).append(record)
    tables, drawn = [], {}
    for place, runs in networks.items():
        names = _varying(runs)
        lines: Lines = {}
        for run in runs:
            lines.setdefault(_values(run, names), []).append(run)
        tables.append(_table(place, names, lines))
        drawn[f"settings_{file_name(place)}"] = partial(charts.accuracy, _report(place, lines))
    return Section(tables or [Table(("setting",), [], "Top-1 accuracy, %", "No runs of ours.")], drawn)


def _table(place: str, names: Sequence[str], lines: Lines) -> Table:
    means = {
        values: over_seeds(map(report_row, runs), "top1", lambda row: round(row["sparsity"], 6))
        for values, runs in lines.items()
    }
    points = sorted({s for line in means.values() for s in line})
    every = [mean for line in means.values() for mean in line.values()]
    mixed = len({mean.kind for mean in every}) > 1
    rows = [
        (*values, *(cell(means[values].get(s), mark=mixed) for s in points), f"{_median_seconds(runs):.1f}")
        for values, runs in lines.items()
    ]
    spec = next(iter(lines.values()))[0].spec.to_dict()
    shared = ", ".join(f"{name} {spec[name]}" for name in ("rule", "score", "repair") if name not in names)
    caption = (
        "Seconds: the median of a line's runs from the diagnosis to the repaired network, beside other jobs on the "
        f"same machine. {f'In all: {shared}. ' if shared else ''}{measured(every)}"
    )
    return Table((*names, *map(short_percent, points), "seconds"), rows, f"{place}: top-1 accuracy, %", caption)


def _report(place: str, lines: Lines) -> ReportData:
    rows = [
        {**report_row(run), "rule": "".join(values[:1]), "repair": ", ".join(values[1:])}
        for values, runs in lines.items()
        for run in runs
    ]
    return report_of(place, next(iter(lines.values())), rows)


def _varying(runs: Sequence[Record]) -> list[str]:
    """The settings that are not the same in all runs, beside network, sparsity and seed."""
    specs = [run.spec.to_dict() for run in runs]
    return [name for name in specs[0] if name not in SAME and any(spec[name] != specs[0][name] for spec in specs)]


def _values(run: Record, names: Sequence[str]) -> tuple[str, ...]:
    spec = run.spec.to_dict()
    return tuple(_told(spec[name]) for name in names)


def _told(value: object) -> str:
    if isinstance(value, dict):
        return options_text(value)
    return "" if value is None else ends(value)


def _median_seconds(runs: Sequence[Record]) -> float:
    spent = [sum(dict(run.provenance.get("seconds") or {}).get(stage, 0.0) for stage in STAGES) for run in runs]
    return statistics.median(map(float, spent))
