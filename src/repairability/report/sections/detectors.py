"""The section of any study of detectors: core, band and null of each, per seed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from repairability.detect import METHODS, Transition
from repairability.experiments.record import Record
from repairability.report import charts
from repairability.report.data import ReportData
from repairability.report.sections.groups import data_name, done, ends, file_name, model_name, options_text
from repairability.report.sections.section import Draw, Section
from repairability.report.tables import interval, short_percent
from repairability.tables import Table
from repairability.transition import Interval


def detectors(records: Sequence[Record]) -> Section:
    """One line per run; the scores of each network's first seed as charts."""
    rows, runs = [], done(records, "detect")
    several = len({grid_text(record) for record in runs}) > 1
    for record in runs:
        transition, spec = transition_of(record), record.spec
        collapse = "" if transition.collapse is None else short_percent(transition.collapse)
        verdict = "" if transition.core is None else "yes" if transition.informative else "no"
        row = (model_name(spec.model), data_name(spec.data), spec.method, str(spec.seed))
        grid = (grid_text(record),) if several else ()
        rows.append(
            (*row, *grid, bounds(transition.core), bounds(transition.broad), null_text(transition), verdict, collapse)
        )
    grids = ("grid",) if several else ()
    head = ("network", "data", "method", "seed", *grids, "core", "band", "null", "informative", "collapse")
    caption = (
        "Null: the share of the core that the detector also names without the information; from 0.5 on it carries none."
        if rows
        else "No runs of ours."
    )
    tables = [Table(head, rows, "Where the network gives way, by detector", caption)]
    return Section(tables, {name: draw for method in METHODS for name, draw in score_charts(records, method).items()})


def transition_of(record: Record) -> Transition:
    """What a run detected."""
    return Transition.from_dict(record.result["transition"])


def grid_text(record: Record) -> str:
    """Which sparsities a run measured, and the rules' options: 'paper', 'auto, floor=0.0'."""
    content = record.spec.to_dict()
    return ", ".join(part for part in (ends(content["grid"]), options_text(content["options"])) if part)


def bounds(core: Interval | None) -> str:
    """An interval of sparsities, or that there is none."""
    return "not detected" if core is None else interval(core)


def null_text(transition: Transition) -> str:
    """'shuffled 0.25, random weights 0.50'."""
    return ", ".join(f"{name} {value:.2f}" for name, value in transition.null.items())


def score_charts(records: Sequence[Record], method: str) -> dict[str, Draw]:
    """The scores of each network's first seed."""
    drawn: dict[str, Draw] = {}
    for record in done(records, "detect"):
        model, data = model_name(record.spec.model), data_name(record.spec.data)
        name = f"{method}_{file_name(f'{model} {data}')}"
        if record.spec.method == method and name not in drawn:
            transition = transition_of(record).for_report()
            report = ReportData(name, model, f"{data}, seed {record.spec.seed}", transition=transition)
            drawn[name] = partial(charts.transition, report)
    return drawn
