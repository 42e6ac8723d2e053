"""The section about what a comparison costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from repairability.experiments.spec import RunSpec
from repairability.experiments.store import Record
from repairability.pruning import grid_for
from repairability.repairs import REPAIRS
from repairability.tables import Table
from reproduction.paper import paper_table
from reproduction.sections.groups import done
from reproduction.sections.section import Section


def diagnostic_cost(records: Sequence[Record]) -> Section:
    """Time per sparsity point of the whole comparison, and where it goes."""
    runs = done(records)
    ours = _items(runs) if runs else {}
    paper = {row["Item"]: row["Value"] for row in paper_table("diagnostic_cost")}
    rows = [
        (item, ours.get(item, ""), paper.get(item, ""), _difference(ours.get(item, ""), paper.get(item, "")))
        for item in dict.fromkeys([*paper, *ours])
    ]
    caption = (
        "A sparsity point is one seed at one sparsity: all rules, from the diagnosis to the evaluation, summed over "
        "the stages each run recorded; what runs share counts in the run that did it. The paper names no hardware."
    )
    tables = [Table(("item", "ours", "paper", "difference"), rows, "Cost of the comparison", caption)]
    stages = dict.fromkeys(stage for run in runs for stage in _seconds(run))
    lines = []
    for stage in stages:
        spent = [_seconds(run)[stage] for run in runs if stage in _seconds(run)]
        numbers = (statistics.median(spent), statistics.fmean(spent), sum(spent))
        lines.append((stage, *(f"{value:.2f}" for value in numbers), str(len(spent))))
    if lines:
        caption = "Of the runs that recorded the stage."
        tables.append(Table(("stage", "median, s", "mean, s", "sum, s", "runs"), lines, "Seconds by stage", caption))
    return Section(tables)


def _items(runs: Sequence[Record]) -> dict[str, str]:
    points: dict[tuple[object, ...], float] = {}
    for run in runs:
        spec = run.spec
        key = (spec.model, spec.data, spec.seed, round(spec.sparsity, 6))
        points[key] = points.get(key, 0.0) + sum(_seconds(run).values())
    grids = {len(_grid(run.spec)) for run in runs}
    rules = sorted({run.spec.rule for run in runs})
    return {
        "Calibration images": _each({run.spec.count for run in runs}),
        "Candidate sparsities": _each(grids),
        "Repairable convolutional layers": _each({len(run.result["allocation"]) for run in runs}),
        "BN recalibration batches": _each({_batches(run.spec.repair) for run in runs}),
        "Gradient updates during diagnosis": "0",
        "Median time per sparsity point": f"{statistics.median(points.values()) / 60:.2f} min",
        "Mean time per sparsity point": f"{statistics.fmean(points.values()) / 60:.2f} min",
        "Sparsity points": str(len(points)),
        "Rules at each": f"{len(rules)}: {', '.join(rules)}",
    }


def _grid(spec: RunSpec) -> tuple[float, ...]:
    return grid_for([spec.sparsity], spec.grid) if isinstance(spec.grid, str) else spec.grid


def _batches(repair: str) -> int:
    """BatchNorm recalibration's, of a chain."""
    return sum(int(getattr(REPAIRS[name.strip()], "batches", 0)) for name in repair.split("+"))


def _seconds(run: Record) -> dict[str, float]:
    return dict(run.provenance.get("seconds") or {})


def _each(values: set[int]) -> str:
    return ", ".join(map(str, sorted(values)))


def _difference(ours: str, paper: str) -> str:
    """Of two numbers in the same unit; nothing of anything else."""
    try:
        mine, theirs = (float(text.removesuffix(" min")) for text in (ours, paper))
    except ValueError:
        return ""
    return f"{mine - theirs:+.2f} min" if paper.endswith(" min") else f"{mine - theirs:+g}"
