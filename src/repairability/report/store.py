"""A whole store: its studies' tables and charts, as one page or as one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from repairability.errors import InputError, unknown
from repairability.experiments.record import Record
from repairability.experiments.study import StudyEntry
from repairability.report.files import Contents, write_contents
from repairability.report.page import Page, Panel, Part
from repairability.report.sections import SMOKE, Section, joined, study_sections
from repairability.report.sections.section import Draw
from repairability.tables import Table, csv_text

if TYPE_CHECKING:
    from altair import LayerChart

Study = tuple[StudyEntry, Sequence[Record]]


class Studies:
    """The sections of a store's studies; each study's are made once, when somebody wants them."""

    def __init__(self, studies: Sequence[Study]) -> None:
        self.given = {entry.name: (entry, records) for entry, records in studies}
        self.made: dict[str, dict[str, Section]] = {}

    def sections(self, study: str) -> dict[str, Section]:
        """By their short names."""
        if study not in self.given:
            raise unknown("study", study, self.given)
        if study not in self.made:
            entry, records = self.given[study]
            self.made[study] = study_sections(entry.sections, records, smoke=entry.smoke)
        return self.made[study]

    def tables(self, study: str, section: str | None = None) -> list[Table]:
        """Of a study, or of one of its sections."""
        sections = self.sections(study)
        if section is not None and section not in sections:
            raise unknown(f"section of {study}", section, sections)
        return list((joined(sections) if section is None else sections[section]).tables)

    def named_tables(self, study: str) -> dict[str, Table]:
        """As STUDY, STUDY_2, ..."""
        return {f"{study}_{i}" if i > 1 else study: table for i, table in enumerate(self.tables(study), 1)}

    def figures(self, study: str) -> dict[str, Draw]:
        """The charts of a study as STUDY_CHART."""
        return {f"{study}_{name}": draw for name, draw in joined(self.sections(study)).figures.items()}

    def figure(self, name: str) -> Draw | None:
        """The chart STUDY_CHART, where there is one."""
        made = (self.figures(study).get(name) for study in self.given if name.startswith(f"{study}_"))
        return next((draw for draw in made if draw is not None), None)

    def charts(self, study: str) -> dict[str, LayerChart]:
        """Those that its runs fill."""
        drawn = {name: draw() for name, draw in self.figures(study).items()}
        return {name: chart for name, chart in drawn.items() if chart is not None}


def counts(entry: StudyEntry, records: Sequence[Record]) -> str:
    """How far a study is."""
    runs, done, failed, missing = _numbers(entry, records)
    words = f"{done:,} of {runs:,} runs done"
    return words + (f", {failed:,} failed" if failed else "") + (f", {missing:,} not there" if missing > 0 else "")


def overview(studies: Sequence[Study]) -> Table:
    """Every study and how far it is."""
    rows = [
        (entry.name, entry.title, *(f"{x:,}" for x in _numbers(entry, records)), f"{_hours(records):.2f}")
        for entry, records in studies
    ]
    runs = _once(studies)
    caption = (
        f"{len(runs):,} runs in all, {_failed(runs):,} of them failed, {_hours(runs):.2f} hours summed over runs; "
        "a run that several studies share counts in each of them, and here once."
    )
    return Table(("study", "title", "runs", "done", "failed", "not there", "hours"), rows, "Studies", caption)


def _numbers(entry: StudyEntry, records: Sequence[Record]) -> tuple[int, int, int, int]:
    """Runs, and of them done, failed, not there."""
    failed, runs = _failed(records), len(entry.run_ids)
    return runs, len(records) - failed, failed, runs - len(records)


def _failed(records: Sequence[Record]) -> int:
    return sum(record.status != "done" for record in records)


def _hours(records: Sequence[Record]) -> float:
    return sum(sum((record.provenance.get("seconds") or {}).values()) for record in records) / 3600


def _once(studies: Sequence[Study]) -> list[Record]:
    return list({record.run_id: record for _, records in studies for record in records}.values())


def write_store_report(
    studies: Sequence[Study], problems: Sequence[str], out: str | Path, formats: Sequence[str] = ("html",)
) -> list[Path]:
    """Write a store's studies and return the files; `out` and `formats` as for `write_report`.

    `problems` are what the store says of its damaged records; a study whose sections cannot be made is one more. The
    page is report.html; the other formats are one file per table or chart, named after its study.
    """
    made, problems = Studies(studies), list(problems)
    for study in list(made.given):
        try:
            made.sections(study)
        except InputError as error:
            problems.append(f"study {study} is not shown: {error}")
            del made.given[study]
    runs = _once(list(made.given.values()))
    tables = {name: table for study in made.given for name, table in made.named_tables(study).items()}

    def csv() -> dict[str, str]:
        """The tables as printed, and `runs`, every run at full precision."""
        every = {"runs": csv_text([record.row() for record in runs])} if runs else {}
        return {name: _csv(table) for name, table in tables.items()} | every

    def charts() -> dict[str, LayerChart]:
        return {name: chart for study in made.given for name, chart in made.charts(study).items()}

    contents = Contents(lambda: _page(made, runs, problems), lambda: tables, csv, charts)
    return write_contents(contents, out, formats)


def _page(made: Studies, runs: Sequence[Record], problems: Sequence[str]) -> str:
    parts = []
    for i, (entry, records) in enumerate(made.given.values(), 1):
        words = [("advice", SMOKE if entry.smoke else ""), ("", entry.about), ("hint", f"{counts(entry, records)}.")]
        panel = Panel(made.charts(entry.name), made.named_tables(entry.name))
        parts.append(Part(f"study-{i}", entry.title, [panel], words=words))
    more = [Panel(tables=tables) for tables in (_failures(runs), _provenance(runs))]
    if more[0].tables or problems:
        parts.append(Part("failed", "Failed runs and damaged records", more[:1], "Failed and damaged", list=problems))
    if more[1].tables:
        parts.append(Part("provenance", "Provenance", more[1:]))
    smoke, failed = sum(entry.smoke for entry, _ in made.given.values()), _failed(runs)
    wanted = {run_id for entry, _ in made.given.values() for run_id in entry.run_ids}
    cards = [
        ("Studies", f"{len(made.given):,}", f"{smoke} of them smoke runs" if smoke else ""),
        ("Runs done", f"{len(runs) - failed:,}", f"of {len(wanted):,} in these studies"),
        ("Failed", f"{failed:,}", f"damaged records: {len(problems)}" if problems else ""),
        ("Time", f"{_hours(runs):.2f} h", "summed over runs"),
    ]
    shown = {name: table for part in parts for panel in part.panels for name, table in panel.tables.items()}
    printed = {name: _csv(table) for name, table in shown.items()}
    return Page("Studies", "repairability", cards, parts, printed, nothing="This store holds no study yet.").html()


def _failures(runs: Sequence[Record]) -> dict[str, Table]:
    rows = [
        (record.run_id, ", ".join(f"{k} {v}" for k, v in record.spec.differences().items()), record.error.strip())
        for record in runs
        if record.status != "done"
    ]
    return {"failures": Table(("run", "settings", "error"), rows, "Failed runs")} if rows else {}


def _provenance(runs: Sequence[Record]) -> dict[str, Table]:
    """Every fact and the values it had; of the peak memory the most."""
    known: dict[str, dict[str, None]] = {}
    for record in runs:
        for name, value in record.provenance.items():
            if name not in ("seconds", "peak_memory_mb"):
                text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
                known.setdefault(name, {})[text] = None
    rows = [(name, "; ".join(values)) for name, values in known.items()]
    memory = [float(r.provenance["peak_memory_mb"]) for r in runs if r.provenance.get("peak_memory_mb") is not None]
    if memory:
        rows.append(("peak memory", f"{max(memory):,.0f} MB"))
    return {"provenance": Table(("what", "value"), rows, "How these numbers were made")} if rows else {}


def _csv(table: Table) -> str:
    """A finished table as CSV; columns of one name are numbered."""
    before = [list(table.columns[:i]).count(column) for i, column in enumerate(table.columns)]
    names = [f"{column} #{n + 1}" if n else column for n, column in zip(before, table.columns, strict=True)]
    return csv_text([dict(zip(names, row, strict=True)) for row in table.rows])
