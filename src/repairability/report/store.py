"""A whole store as one page, or as one file per table and chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from repairability.experiments.store import Record
from repairability.experiments.study import StudyEntry
from repairability.report.files import Contents, write_contents
from repairability.report.page import Card, Panel, Part, page
from repairability.report.sections import SMOKE, study_section
from repairability.tables import Table, csv_text

if TYPE_CHECKING:
    from altair import LayerChart

Study = tuple[StudyEntry, Sequence[Record]]


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


@dataclass(frozen=True)
class StudyReport:
    """One study, made ready: tables and charts by the name of their file."""

    entry: StudyEntry
    records: Sequence[Record]
    tables: Mapping[str, Table]
    charts: Mapping[str, LayerChart]


def study_report(entry: StudyEntry, records: Sequence[Record]) -> StudyReport:
    """The study's section with the names of its files; charts are described here."""
    section = study_section(entry.sections, records, smoke=entry.smoke)
    names = [entry.name if i == 0 else f"{entry.name}_{i + 1}" for i in range(len(section.tables))]
    drawn = {f"{entry.name}_{name}": draw() for name, draw in section.figures.items()}
    charts = {name: chart for name, chart in drawn.items() if chart is not None}
    return StudyReport(entry, records, dict(zip(names, section.tables, strict=True)), charts)


def write_store_report(
    studies: Sequence[Study],
    problems: Sequence[str],
    out: str | Path,
    formats: Sequence[str] = ("html",),
    title: str = "Studies",
) -> list[Path]:
    """Write a store's studies and return the files; `out` and `formats` as for `write_report`.

    `problems` are what the store says of its damaged records. The page is report.html; the other formats are one file
    per table or chart, named after its study.
    """
    return write_contents(store_contents(studies, problems, title), out, formats)


def store_contents(studies: Sequence[Study], problems: Sequence[str], title: str = "Studies") -> Contents:
    """What the formats write of a store."""
    reports = [study_report(entry, records) for entry, records in studies]
    tables = {name: table for report in reports for name, table in report.tables.items()}
    charts = {name: chart for report in reports for name, chart in report.charts.items()}
    runs = _once(studies)

    def csv() -> dict[str, str]:
        """The tables as printed, and `runs`, every run at full precision."""
        rows = [record.row() for record in runs]
        keys = dict.fromkeys(key for row in rows for key in row)
        every = {"runs": csv_text([{key: row.get(key, "") for key in keys} for row in rows])} if rows else {}
        return {name: _csv(table) for name, table in tables.items()} | every

    def whole_page() -> str:
        parts = [_part(i, report) for i, report in enumerate(reports, 1)]
        failures, provenance = _failures(runs), _provenance(runs)
        if failures or problems:
            panels = [Panel(tables=failures)] if failures else []
            parts.append(Part("failed", "Failed runs and damaged records", panels, "Failed and damaged", list=problems))
        if provenance:
            parts.append(Part("provenance", "Provenance", [Panel(tables=provenance)]))
        printed = {name: _csv(table) for name, table in {**tables, **failures, **provenance}.items()}
        cards = _cards(studies, runs, problems)
        return page(title, "repairability", cards, parts, printed, nothing="This store holds no study yet.")

    return Contents(whole_page, lambda: tables, csv, lambda: charts)


def _part(number: int, report: StudyReport) -> Part:
    entry = report.entry
    smoke = ("advice", SMOKE if entry.smoke else "")
    words = [smoke, ("", entry.about), ("hint", f"{counts(entry, report.records)}.")]
    return Part(f"study-{number}", entry.title, [Panel(report.charts, report.tables)], words=words)


def _cards(studies: Sequence[Study], runs: Sequence[Record], problems: Sequence[str]) -> list[Card]:
    failed = _failed(runs)
    wanted = {run_id for entry, _ in studies for run_id in entry.run_ids}
    smoke = sum(entry.smoke for entry, _ in studies)
    return [
        ("Studies", f"{len(studies):,}", f"{smoke} of them smoke runs" if smoke else ""),
        ("Runs done", f"{len(runs) - failed:,}", f"of {len(wanted):,} in these studies"),
        ("Failed", f"{failed:,}", f"damaged records: {len(problems)}" if problems else ""),
        ("Time", f"{_hours(runs):.2f} h", "summed over runs"),
    ]


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
    names: list[str] = []
    for column in table.columns:
        again = sum(name == column or name.startswith(f"{column} #") for name in names)
        names.append(f"{column} #{again + 1}" if again else column)
    return csv_text([dict(zip(names, row, strict=True)) for row in table.rows])
