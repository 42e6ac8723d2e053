"""The section of any study: rules by sparsities, RR minus each other rule, and which of the gaps are beyond noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from repairability.experiments.record import Record
from repairability.report import charts, tables
from repairability.report.estimates import Estimate, estimates, repairs, span
from repairability.report.methods import ordered
from repairability.report.sections.groups import Group, file_name, gap_cells, groups
from repairability.report.sections.section import Draw, Section, measured
from repairability.report.tables import cell, short_percent
from repairability.tables import Table

BEYOND_SEEDS, BEYOND_IMAGES = "†", "‡"


def accuracy(records: Sequence[Record]) -> Section:
    """A table per setting; the gaps of all of them in one more, where some are paired."""
    settings = groups(records)
    made = []
    for group in settings:
        means = [mean for line in estimates(group.report).values() for mean in line.values()]
        caption = f"Repair {', '.join(repairs(group.report))}. {measured(means)}"
        made.append(replace(tables.accuracy(group.report), title=f"{group.place}: top-1 accuracy, %", caption=caption))
    gaps = gap_table(settings)
    if gaps.rows or not made:
        made.append(gaps)
    return Section(made, {**sweeps(settings), **gap_charts(settings)})


def sweeps(some: Sequence[Group]) -> dict[str, Draw]:
    """Accuracy over sparsity, a chart per group."""
    return {f"sweep_{file_name(group.place)}": partial(charts.accuracy, group.report) for group in some}


def gap_charts(some: Sequence[Group]) -> dict[str, Draw]:
    """RR minus ERK over sparsity, a chart per group; no chart where nothing is paired."""
    return {f"gap_{file_name(group.place)}": partial(charts.gap, group.report) for group in some}


def gap_table(some: Sequence[Group]) -> Table:
    """One line per place and sparsity, one column per rule."""
    rules = ordered(str(row["rule"]) for group in some for row in group.report.results)
    gaps = gap_cells(some, {f"rr - {rule}": ("rr", rule) for rule in rules if rule != "rr"})
    columns = list(dict.fromkeys(column for row in gaps.values() for column in row))
    lines = [
        (place, short_percent(s), *(cell(row.get(c), signed=True, mark=True) + _mark(row.get(c)) for c in columns))
        for (place, s), row in gaps.items()
    ]
    caption = _caption([gap for row in gaps.values() for gap in row.values()])
    title = "RR minus each other rule, points of top-1 accuracy, paired by seed"
    return Table(("network", "sparsity", *columns), lines, title, caption)


def _mark(gap: Estimate | None) -> str:
    if gap is None or abs(gap.mean) <= 2 * (gap.standard_error or 0.0):
        return ""
    return f" {BEYOND_IMAGES if abs(gap.mean) > 2 * _images_error(gap.n) else BEYOND_SEEDS}"


def _images_error(n: int) -> float:
    """The most that the standard error of a difference of two proportions on n images can be."""
    return math.sqrt(0.5 / n)


def _caption(gaps: Sequence[Estimate]) -> str:
    if not gaps:
        return "No paired runs of ours."
    several = [gap.seeds for gap in gaps if gap.seeds > 1]
    parts, asked = [], ""
    if several:
        few = min(several)
        width = Estimate(0.0, few**0.5, few, 1).half_width  # in standard errors; with few seeds far more than two
        asked = f" (a 95 % interval by Student's t over {few} seeds would ask for {width:.1f})"
        parts.append(
            f"± is the sample standard deviation of the differences over {span(several)} seeds. Seeds are draws of "
            "calibration images; the test images are the same in all of them, and their own noise is not in it."
        )
    if len(several) < len(gaps):
        parts.append(
            "*: one seed, ± the binomial standard error of a difference of two proportions p and q on n images, "
            "sqrt((p (1 - p) + q (1 - q)) / n), at most sqrt(2 p (1 - p) / n) for the p nearer to one half; a bound, "
            "since both rules saw the same images."
        )
    most = 200 * _images_error(min(gap.n for gap in gaps))
    parts.append(
        f"{BEYOND_SEEDS}: the mean is more than two standard errors from 0{asked}; {BEYOND_IMAGES}: and more "
        "than two standard errors of the test images at worst, sqrt(0.5 / n) each "
        f"(n = {span(gap.n for gap in gaps)}: {most:.2f} points)."
    )
    return " ".join(parts)
