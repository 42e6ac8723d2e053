"""A whole store as one page, or as one file per table and figure."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from repairability.errors import unknown
from repairability.experiments.store import Record
from repairability.experiments.study import StudyEntry
from repairability.report.figures import render
from repairability.report.files import Files, write_files
from repairability.report.html import FOLDER, filled, script_json
from repairability.report.markup import to_latex, to_markdown
from repairability.report.sections import SMOKE, study_section
from repairability.tables import Table, csv_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StudyReport:
    """One study, made ready: tables and figures by the name of their file."""

    entry: StudyEntry
    records: Sequence[Record]
    tables: Mapping[str, Table]
    figures: Mapping[str, Figure]

    @property
    def counts(self) -> str:
        return counts(self.entry, self.records)


def counts(entry: StudyEntry, records: Sequence[Record]) -> str:
    """How far a study is."""
    done = sum(record.status == "done" for record in records)
    failed = len(records) - done
    missing = len(entry.run_ids) - len(records)
    words = f"{done:,} of {len(entry.run_ids):,} runs done"
    return words + (f", {failed:,} failed" if failed else "") + (f", {missing:,} not there" if missing > 0 else "")


def overview(studies: Sequence[tuple[StudyEntry, Sequence[Record]]]) -> Table:
    """Every study and how far it is."""
    rows = []
    for entry, records in studies:
        done = sum(record.status == "done" for record in records)
        numbers = (len(entry.run_ids), done, len(records) - done, len(entry.run_ids) - len(records))
        rows.append((entry.name, entry.title, *(f"{number:,}" for number in numbers), f"{_hours(records):.2f}"))
    every = list({record.run_id: record for _, records in studies for record in records}.values())
    failed = sum(record.status != "done" for record in every)
    caption = (
        f"{len(every):,} runs in all, {failed:,} of them failed, {_hours(every):.2f} hours summed over runs; a run "
        "that several studies share counts in each of them, and here once."
    )
    head = ("study", "title", "runs", "done", "failed", "not there", "hours")
    return Table(head, rows, "Studies", caption)


def _hours(records: Sequence[Record]) -> float:
    return sum(sum((record.provenance.get("seconds") or {}).values()) for record in records) / 3600


def study_report(entry: StudyEntry, records: Sequence[Record]) -> StudyReport:
    """The study's section with the names of its files; figures are drawn here."""
    section = study_section(entry.sections, records, smoke=entry.smoke)
    names = [entry.name if i == 0 else f"{entry.name}_{i + 1}" for i in range(len(section.tables))]
    drawn = {f"{entry.name}_{name}": draw() for name, draw in section.figures.items()}
    figures = {name: figure for name, figure in drawn.items() if figure is not None}
    return StudyReport(entry, records, dict(zip(names, section.tables, strict=True)), figures)


def write_store_report(
    studies: Sequence[tuple[StudyEntry, Sequence[Record]]],
    problems: Sequence[str],
    out: str | Path,
    formats: Sequence[str] = ("html",),
    title: str = "Studies",
) -> list[Path]:
    """Write a store's studies and return the files; `out` and `formats` as for `write_report`.

    `problems` are what the store says of its damaged records. The page is report.html; the other formats are one file
    per table or figure, named after its study.
    """
    for name in formats:
        if name not in STORE_FORMATS:
            raise unknown("format", name, STORE_FORMATS)
    reports = [study_report(entry, records) for entry, records in studies]
    made = {name: STORE_FORMATS[name](reports, problems, title) for name in dict.fromkeys(formats)}
    return write_files(made, out)


def store_page(reports: Sequence[StudyReport], problems: Sequence[str], title: str = "Studies") -> str:
    """The whole page as text; opening it asks nothing of any network."""
    records = {record.run_id: record for report in reports for record in report.records}
    failures, provenance = _failures(list(records.values())), _provenance(list(records.values()))
    tables = {name: table for report in reports for name, table in report.tables.items()}
    tables |= {name: table for name, table in (("failures", failures), ("provenance", provenance)) if table}
    studies = [
        {
            "entry": report.entry,
            "counts": f"{report.counts}.",
            "tables": report.tables,
            "pictures": [{"name": name, "source": _picture(figure)} for name, figure in report.figures.items()],
        }
        for report in reports
    ]
    return filled(
        "store.html",
        title=title,
        studies=studies,
        cards=_cards(reports, list(records.values()), problems),
        failures=failures,
        problems=problems,
        provenance=provenance,
        smoke=SMOKE,
        json=script_json({"csv": {name: _csv_of(table) for name, table in tables.items()}}),
        script=(FOLDER / "page_tables.js").read_text(encoding="utf-8"),
    )


def _picture(figure: Figure) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(render(figure, 'svg')).decode()}"


def _cards(reports: Sequence[StudyReport], records: Sequence[Record], problems: Sequence[str]) -> list[dict[str, str]]:
    failed = sum(record.status != "done" for record in records)
    wanted = {run_id for report in reports for run_id in report.entry.run_ids}
    smoke = sum(report.entry.smoke for report in reports)
    return [
        {"label": "Studies", "number": f"{len(reports):,}", "note": f"{smoke} of them smoke runs" if smoke else ""},
        {"label": "Runs done", "number": f"{len(records) - failed:,}", "note": f"of {len(wanted):,} in these studies"},
        {"label": "Failed", "number": f"{failed:,}", "note": f"damaged records: {len(problems)}" if problems else ""},
        {"label": "Time", "number": f"{_hours(records):.2f} h", "note": "summed over runs"},
    ]


def _failures(records: Sequence[Record]) -> Table | None:
    rows = [
        (record.run_id, ", ".join(f"{k} {v}" for k, v in record.spec.differences().items()), record.error.strip())
        for record in records
        if record.status != "done"
    ]
    return Table(("run", "settings", "error"), rows, "Failed runs") if rows else None


def _provenance(records: Sequence[Record]) -> Table | None:
    """Every fact and the values it had; seconds and memory as sums and maxima."""
    known: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record.provenance.items():
            if name not in ("seconds", "peak_memory_mb"):
                text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
                known.setdefault(name, {})[text] = None
    rows = [(name, "; ".join(values)) for name, values in known.items()]
    memory = [float(r.provenance["peak_memory_mb"]) for r in records if r.provenance.get("peak_memory_mb") is not None]
    if memory:
        rows.append(("peak memory", f"{max(memory):,.0f} MB"))
    return Table(("what", "value"), rows, "How these numbers were made") if rows else None


def _csv_of(table: Table) -> str:
    """A finished table as CSV; columns of one name are numbered."""
    names: list[str] = []
    for column in table.columns:
        again = sum(name == column or name.startswith(f"{column} #") for name in names)
        names.append(f"{column} #{again + 1}" if again else column)
    return csv_text([dict(zip(names, row, strict=True)) for row in table.rows])


def _csv(reports: Sequence[StudyReport], problems: Sequence[str], title: str) -> Files:
    """The tables as printed, and `runs.csv`, every run at full precision."""
    files: dict[str, str | bytes] = {f"{name}.csv": _csv_of(table) for name, table in _tables(reports).items()}
    runs = {record.run_id: record.row() for report in reports for record in report.records}
    keys = dict.fromkeys(key for row in runs.values() for key in row)
    if runs:
        files["runs.csv"] = csv_text([{key: row.get(key, "") for key in keys} for row in runs.values()])
    return files


def _tables(reports: Sequence[StudyReport]) -> dict[str, Table]:
    return {name: table for report in reports for name, table in report.tables.items()}


def _figures(reports: Sequence[StudyReport], kind: str) -> Files:
    return {f"{name}.{kind}": render(x, kind) for report in reports for name, x in report.figures.items()}


STORE_FORMATS: dict[str, Callable[[Sequence[StudyReport], Sequence[str], str], Files]] = {
    "html": lambda reports, problems, title: {"report.html": store_page(reports, problems, title)},
    "md": lambda reports, problems, title: {f"{x}.md": to_markdown(table) for x, table in _tables(reports).items()},
    "csv": _csv,
    "latex": lambda reports, problems, title: {f"{x}.tex": to_latex(t, x) for x, t in _tables(reports).items()},
    "png": lambda reports, problems, title: _figures(reports, "png"),
    "pdf": lambda reports, problems, title: _figures(reports, "pdf"),
    "svg": lambda reports, problems, title: _figures(reports, "svg"),
}
"""A format and what it writes: file names and their whole content."""
