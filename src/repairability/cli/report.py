"""The verb report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

import repairability as rp
from repairability._files import read_text
from repairability.cli import options
from repairability.cli.output import note, show, show_written
from repairability.cli.stores import read_studies
from repairability.errors import InputError

if TYPE_CHECKING:
    from repairability.cli.stores import StudyRecords
    from repairability.report import ReportData


def verb(
    file: Path | None = Argument(None, metavar="[FILE]", help="A record (demo.json) or a diagnosis, as JSON."),
    store: Path | None = Option(None, metavar="DIR", help="Instead of FILE: a store of runs, or an archive of one."),
    study: list[str] | None = Option(
        None, metavar="NAME", help="Only this study (repeatable); without --out, print its tables."
    ),
    out: Path | None = Option(None, help="The HTML page (default report.html), or a folder for the other formats."),
    formats: str = Option("html", "--format", metavar="FORMATS", help=f"With commas between: {options.FORMATS}."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Turn a record, or a store of runs, into one self-contained HTML page, and into tables and figures for papers.

    Example: repairability report demo/demo.json --out report.html --format html,md,latex,png

    Example: repairability report --store runs --out studies.html

    Example: repairability report --store runs --study digits
    """
    from repairability.report import write_report
    from repairability.report.store import write_store_report

    page, wanted = out or Path("report.html"), [name.strip() for name in formats.split(",")]
    if file and not store and not study:
        show_written(as_json, write_report(_record(file), page, wanted))
    elif store and not file:
        studies, problems = read_studies(store, study or ())
        if not study or out:
            show_written(as_json, write_store_report(studies, problems, page, wanted))
            return
        for problem in problems:
            note(problem)
        _show_tables(studies, as_json)
    else:
        raise InputError("report takes either a FILE or --store DIR, and --study only with a store")


def _show_tables(studies: Sequence[StudyRecords], as_json: bool) -> None:
    from repairability.report.store import Studies, counts

    sections, content = Studies(studies), []
    for entry, records in studies:
        tables, runs = sections.tables(entry.name), counts(entry, records)
        content.append({"study": entry.name, "title": entry.title, "runs": runs, "tables": tables})
        if not as_json:
            show(False, None, *tables, line=f"\n{entry.name}: {runs}")
    if as_json:
        show(True, {"studies": content})


def _record(file: Path) -> ReportData:
    from repairability.report import ReportData

    text = read_text(file)
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{file} is not JSON: {error}") from error
    if isinstance(content, dict) and "title" not in content and "rr" in content:
        diagnosis = rp.Diagnosis.from_json(text)
        return ReportData(title="Diagnosis", model=file.stem, data=f"{diagnosis.images} images", diagnosis=diagnosis)
    return ReportData.from_json(text)
