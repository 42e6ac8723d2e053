"""The section of any study: rules by sparsities, and RR minus each other rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from repairability.experiments.store import Record
from repairability.report import charts, tables
from repairability.report.sections.gaps import gap_table
from repairability.report.sections.groups import Group, cells, file_name, groups
from repairability.report.sections.section import Draw, Section, measured


def accuracy(records: Sequence[Record]) -> Section:
    """A table per setting; the gaps of all of them in one more, where some are paired."""
    settings = groups(records)
    made = []
    for group in settings:
        repairs = ", ".join(dict.fromkeys(record.spec.repair for record in group.records))
        caption = f"Repair {repairs}. {measured([cell for row in cells([group]).values() for cell in row.values()])}"
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
