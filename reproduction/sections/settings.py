"""The section that compares settings: one line for each combination of what a study varies, one column per sparsity."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from repairability.experiments.store import Record
from repairability.report import charts
from repairability.report.data import ReportData
from repairability.report.estimates import Estimate, estimate
from repairability.report.tables import cell, short_percent
from repairability.tables import Table
from reproduction.sections.accuracies import file_name
from reproduction.sections.groups import data_name, done, ends, model_name
from reproduction.sections.section import Draw, Section, measured

NETWORK = ("model", "data", "weights", "num_classes", "image_size")
POINT = ("sparsity", "seed")
STAGES = ("diagnose", "statistics", "allocate", "mask", "repair")
"""What it takes to get the sparse network; loading and judging it are not of it."""


def settings(records: Sequence[Record]) -> Section:
    """A table per network. In figures the colour tells the first setting that varies, the dash the others."""
    networks: dict[tuple[str, str], list[Record]] = {}
    for record in done(records):
        networks.setdefault((model_name(record.spec.model), data_name(record.spec.data)), []).append(record)
    tables, drawn = [], {}
    for (model, data), runs in networks.items():
        tables.append(_table(f"{model} on {data}", runs))
        drawn[f"settings_{file_name(f'{model} on {data}')}"] = _figure(model, data, runs)
    if not tables:
        tables.append(Table(("setting",), [], "Top-1 accuracy, %", "No runs of ours."))
    return Section(tables, drawn)


def _table(place: str, runs: Sequence[Record]) -> Table:
    names = _varying(runs)
    points = sorted({round(run.spec.sparsity, 6) for run in runs})
    lines: dict[tuple[str, ...], list[Record]] = {}
    for run in runs:
        lines.setdefault(_values(run, names), []).append(run)
    found = {values: [_accuracy(mine, s) for s in points] for values, mine in lines.items()}
    every = [each for line in found.values() for each in line if each is not None]
    mixed = len({each.kind for each in every}) > 1
    rows = [
        (*values, *(cell(each, mark=mixed) for each in found[values]), f"{_median_seconds(mine):.1f}")
        for values, mine in lines.items()
    ]
    same = runs[0].spec
    shared = ", ".join(f"{name} {getattr(same, name)}" for name in ("rule", "score", "repair") if name not in names)
    caption = (
        "Seconds: the median of a line's runs from the diagnosis to the repaired network, beside other jobs on the "
        f"same machine. {f'In all: {shared}. ' if shared else ''}{measured(every)}"
    )
    head = (*names, *map(short_percent, points), "seconds")
    return Table(head, rows, f"{place}: top-1 accuracy, %", caption)


def _figure(model: str, data: str, runs: Sequence[Record]) -> Draw:
    names = _varying(runs)
    lines = []
    for run in runs:
        first, *others = _values(run, names) or ("",)
        lines.append(
            {
                "rule": first,
                "repair": ", ".join(others),
                "sparsity": run.spec.sparsity,
                "seed": run.spec.seed,
                **{name: run.result[name] for name in ("achieved", "global_sparsity", "top1", "n")},
            }
        )
    top1 = runs[0].result.get("dense_top1")
    dense = None if top1 is None else {"top1": top1, "n": runs[0].result["n"]}
    report = ReportData(title=f"{model} on {data}", model=model, data=data, dense=dense, results=lines)
    return partial(charts.accuracy, report)


def _varying(runs: Sequence[Record]) -> list[str]:
    """The settings that are not the same in all runs, beside network, sparsity and seed."""
    specs = [run.spec.to_dict() for run in runs]
    names = [name for name in specs[0] if name not in (*NETWORK, *POINT)]
    return [name for name in names if any(spec[name] != specs[0][name] for spec in specs)]


def _values(run: Record, names: Sequence[str]) -> tuple[str, ...]:
    spec = run.spec.to_dict()
    return tuple(_told(spec[name]) for name in names)


def _told(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return "" if value is None else ends(value)


def _accuracy(runs: Sequence[Record], sparsity: float) -> Estimate | None:
    rows = [
        {"top1": run.result["top1"], "n": run.result["n"]} for run in runs if round(run.spec.sparsity, 6) == sparsity
    ]
    return estimate([row["top1"] for row in rows], rows, "top1") if rows else None


def _median_seconds(runs: Sequence[Record]) -> float:
    spent = [sum(dict(run.provenance.get("seconds") or {}).get(stage, 0.0) for stage in STAGES) for run in runs]
    return statistics.median(map(float, spent))
