"""The verb report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from repairability._files import read_text
from repairability.cli import options
from repairability.cli.output import Answer, note, written
from repairability.errors import InputError
from repairability.tables import Table

if TYPE_CHECKING:
    from repairability.report import ReportData


def verb(
    file: Path | None = Argument(None, metavar="[FILE]", help="A record (demo.json), or a diagnosis (.json or .csv)."),
    store: Path | None = Option(None, metavar="DIR", help="Instead of FILE: a store of runs, or an archive of one."),
    study: list[str] | None = Option(
        None, metavar="NAME", help="Only this study (repeatable); without --out, print its tables."
    ),
    out: Path | None = Option(None, help="The HTML page (default report.html), or a folder for the other formats."),
    formats: str = Option("html", "--format", metavar="FORMATS", help=f"With commas between: {options.FORMATS}."),
) -> Answer:
    """Turn a record, or a store of runs, into one self-contained HTML page, and into tables and figures for papers.

    Example: repairability report demo/demo.json --out report.html --format html,md,latex,png

    Example: repairability report --store runs --out studies.html

    Example: repairability report --store runs --study digits
    """
    from repairability.experiments.archive import read_studies
    from repairability.report import write_report
    from repairability.report.files import check_out
    from repairability.report.store import Studies, counts, write_store_report

    page, wanted = out or Path("report.html"), [name.strip() for name in formats.split(",")]
    if not study or out:
        check_out(page, wanted)
    if file and not store and not study:
        return written(write_report(_record(file), page, wanted))
    if file or not store:
        raise InputError("report takes either a FILE or --store DIR, and --study only with a store")
    studies, problems = read_studies(store, study or ())
    if not study or out:
        return written(write_store_report(studies, problems, page, wanted))
    note(*problems)
    sections, content, parts = Studies(studies), [], list[Table | str]()
    for entry, records in studies:
        tables, runs = sections.tables(entry.name), counts(entry, records)
        content.append({"study": entry.name, "title": entry.title, "runs": runs, "tables": tables})
        parts += [*tables, f"\n{entry.name}: {runs}"]
    return Answer({"studies": content}, parts)


def _record(file: Path) -> ReportData:
    """What a file holds: a record, or a diagnosis alone."""
    from repairability.report import ReportData

    diagnosis = options.read_diagnosis(file) if options.is_csv(file) else None
    try:
        record = ReportData.from_dict(diagnosis.to_dict()) if diagnosis else ReportData.from_json(read_text(file))
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    return replace(record, model=record.model or file.stem)
