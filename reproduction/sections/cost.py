"""The section about what a comparison costs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from repairability.calibration import BN_BATCHES
from repairability.experiments.record import Record
from repairability.experiments.spec import RunSpec
from repairability.pruning import grid_for
from repairability.repairs.batchnorm import SHORT
from repairability.report.sections.groups import done
from repairability.report.sections.section import Section
from repairability.tables import Table
from reproduction.paper import paper_table, quantity
from reproduction.sections.compare import shown

RULES = ("global", "uniform", "raw", "residual", "rr", "erk")
"""What the paper compared and timed."""

BATCHES = {"bn": BN_BATCHES, "bn-cumulative": BN_BATCHES, "bn-short": SHORT[0]}
"""BatchNorm recalibration's, by its name in a chain of repairs."""

MINUTES = "min"
Quantity = tuple[tuple[float, ...], str]
"""The values of the runs, and their unit."""


def diagnostic_cost(records: Sequence[Record]) -> Section:
    """Time per sparsity point of the whole comparison, and where it goes."""
    chosen = shown(records, RULES)
    runs = done(chosen)
    ours = _quantities(runs) if runs else {}
    paper = {row["Item"]: quantity(row["Value"]) for row in paper_table("diagnostic_cost")}
    rows = []
    for item in dict.fromkeys([*paper, *ours]):
        values, unit = ours.get(item, ((), ""))
        line = [item, ", ".join(_text(value, unit) for value in values)]
        line.append(_text(*paper[item]) if item in paper else "")
        alike = item in paper and len(values) == 1 and unit != MINUTES  # times of another machine say nothing
        line.append(_text(values[0] - paper[item][0], unit, "+") if alike else "")
        rows.append(tuple(line))
    if runs:
        rules = sorted({run.spec.rule for run in runs})
        rows.append(("Rules at each", f"{len(rules)}: {', '.join(rules)}", "", ""))
    caption = (
        "A sparsity point is one seed at one sparsity: all rules, from the diagnosis to the evaluation, summed over "
        "the stages each run recorded; what runs share counts in the run that did it. Times are not compared: the "
        "paper names neither its hardware nor what a point holds; ours holds J and the agreement too."
    )
    tables = [Table(("item", "ours", "paper", "difference"), rows, "Cost of the comparison", caption), *_stages(runs)]
    return Section(tables, records=chosen)


def _quantities(runs: Sequence[Record]) -> dict[str, Quantity]:
    points: dict[tuple[object, ...], float] = {}
    for run in runs:
        key = (run.spec.model, run.spec.data, run.spec.seed, round(run.spec.sparsity, 6))
        points[key] = points.get(key, 0.0) + sum(_seconds(run).values()) / 60
    return {
        "Calibration images": _counts(run.spec.count for run in runs),
        "Candidate sparsities": _counts(len(_grid(run.spec)) for run in runs),
        "Repairable convolutional layers": _counts(len(run.result["allocation"]) for run in runs),
        "BN recalibration batches": _counts(_batches(run.spec.repair) for run in runs),
        "Gradient updates during diagnosis": _counts([0]),
        "Median time per sparsity point": ((statistics.median(points.values()),), MINUTES),
        "Mean time per sparsity point": ((statistics.fmean(points.values()),), MINUTES),
        "Sparsity points": _counts([len(points)]),
    }


def _stages(runs: Sequence[Record]) -> list[Table]:
    """Where the seconds went; no table where none were recorded."""
    stages: dict[str, list[float]] = {}
    for run in runs:
        for stage, seconds in _seconds(run).items():
            stages.setdefault(stage, []).append(seconds)
    rows = []
    for stage, spent in stages.items():
        numbers = (statistics.median(spent), statistics.fmean(spent), sum(spent))
        rows.append((stage, *(f"{value:.2f}" for value in numbers), str(len(spent))))
    head = ("stage", "median, s", "mean, s", "sum, s", "runs")
    return [Table(head, rows, "Seconds by stage", "Of the runs that recorded the stage.")] if rows else []


def _counts(values: Iterable[int]) -> Quantity:
    return tuple(sorted(set(values))), ""


def _text(value: float, unit: str, sign: str = "") -> str:
    return f"{value:{sign}.2f} {unit}" if unit == MINUTES else f"{value:{sign}g}"


def _grid(spec: RunSpec) -> tuple[float, ...]:
    return grid_for([spec.sparsity], spec.grid) if isinstance(spec.grid, str) else spec.grid


def _batches(repair: str) -> int:
    """BatchNorm recalibration's, of a chain."""
    return sum(BATCHES.get(name.strip(), 0) for name in repair.split("+"))


def _seconds(run: Record) -> dict[str, float]:
    return dict(run.provenance.get("seconds") or {})
