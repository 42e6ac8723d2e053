"""Verbs that tell a story: demo, report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from repairability._files import read_text, write_atomically
from repairability.cli.options import (
    AsJson,
    Seed,
    Threads,
    note,
    plain_table,
    print_json,
    print_line,
    print_table,
    use_threads,
)
from repairability.demo import SPARSITIES, run_demo
from repairability.diagnostics import Diagnosis
from repairability.errors import InputError, unknown
from repairability.experiments import Record, Store, StudyEntry
from repairability.experiments.archive import is_archive, read_archive, write_archive
from repairability.report import FORMATS, ReportData, write_report
from repairability.report.documents import Studies, renew
from repairability.report.files import write_file
from repairability.report.store import counts, overview, write_store_report
from repairability.report.tables import named_tables

ARCHIVE = "archive"
Found = Sequence[tuple[StudyEntry, Sequence[Record]]]
Formats = Annotated[
    str,
    typer.Option(
        "--format",
        help=f"With commas between: {', '.join(FORMATS)}; of a store also {ARCHIVE}: four CSV files with all of it.",
        metavar="FORMATS",
    ),
]


def demo_verb(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the page and the record go.")] = Path(
        "demo"
    ),
    seeds: Annotated[int, typer.Option("--seeds", help="How many draws of calibration images.")] = 3,
    seed: Seed = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """The whole story on scikit-learn's digits, in under three minutes on two CPU threads.

    Trains a small ResNet (once; it is cached), diagnoses it, prunes it by seven rules over a sweep of sparsities,
    repairs, evaluates, and writes an HTML report and the record it was made from.
    """
    use_threads(threads)
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, not {seeds}")
    data = run_demo(seeds=range(seed, seed + seeds), sparsities=SPARSITIES)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "demo.json", data.to_json())
    (page,) = write_report(data, out / "demo.html", ["html"])
    if as_json:
        print_json({**data.to_dict(), "page": str(page)})
        return
    tables = named_tables(data)
    for name, table in tables.items():
        if name != "diagnosis":  # 12 layers x 7 sparsities: in the page
            print_table(table)
            print_line("")
    print_line(f"the page: {page}   the record: {out / 'demo.json'}")


def report_verb(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A record (demo.json) or a diagnosis, as JSON.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Instead of FILE: a store, or an archive of one."),
    ] = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option("--study", metavar="NAME", help="Only this study (repeatable); without --out, print its tables."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Print which studies the store has, and how far they are.")
    ] = False,
    into: Annotated[
        list[Path] | None,
        typer.Option(
            "--into",
            metavar="FILE.md",
            help="Renew the tables between <!-- study NAME --> and <!-- end -->, and the linked figures (repeatable).",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --into: write nothing; exit 1 and name what is out of date.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The HTML page (default report.html), or a folder for the other formats."),
    ] = None,
    formats: Formats = "html",
    as_json: AsJson = False,
) -> None:
    """Turn a record, or a store of runs, into one self-contained HTML page, and into tables and figures for papers.

    Example: repairability report demo/demo.json --out report.html --format html,md,latex,png
    Example: repairability report --store runs --out studies.html
    Example: repairability report --store runs --study digits
    """
    if (file is None) == (store is None):
        raise InputError("report takes either a FILE or --store DIR")
    if file is not None and (chosen or into or listed):
        raise InputError("--study, --list and --into are for a store: give --store DIR instead of FILE")
    if listed and (chosen or into or out is not None):
        raise InputError("--list prints all studies and writes nothing: leave --study, --into and --out out")
    if into and (chosen or out is not None):
        raise InputError(
            "--into takes its studies from the document's marks, and writes there: leave --study and --out out"
        )
    if check and not into:
        raise InputError("--check compares a document with a store: give --into FILE.md")
    page, wanted = out or Path("report.html"), [name.strip() for name in formats.split(",")]
    if file is not None:
        written = write_report(_read(file), page, wanted)
    elif wanted == [ARCHIVE]:
        folder = _there(store)
        if is_archive(folder) or chosen:
            raise InputError(f"--format {ARCHIVE} takes a whole store, not an archive or a part of {folder}")
        written = write_archive(Store(folder), page)
    else:
        studies, problems = _read_store(_there(store), chosen or ())
        if listed or into or (chosen and out is None):
            for problem in problems:
                note(problem)
            if into:
                _renew(into, Studies(studies), check, as_json)
            elif listed:
                table = overview(studies)
                print_json(plain_table(table)) if as_json else print_table(table)
            else:
                _print_studies(studies, as_json)
            return
        written = write_store_report(studies, problems, page, wanted)
    if as_json:
        print_json({"written": [str(path) for path in written]})
    else:
        for path in written:
            print_line(f"wrote {path}")


def _there(folder: Path | None) -> Path:
    if folder is None or not folder.is_dir():
        raise InputError(f"there is no store at {folder}")
    return folder


def _read_store(folder: Path, chosen: Sequence[str]) -> tuple[Found, list[str]]:
    """The studies of a store or an archive, or those that are chosen; and what is wrong with damaged records."""
    problems: list[str] = []
    if is_archive(folder):
        studies: Found = read_archive(folder)
    else:
        store = Store(folder)
        studies = [(entry, store.read_all(entry.run_ids)[0]) for entry in store.studies()]
        problems = store.read_all()[1]
    if not chosen:
        return studies, problems
    known = {entry.name: (entry, records) for entry, records in studies}
    for name in chosen:
        if name not in known:
            raise unknown("study", name, known)
    return [known[name] for name in dict.fromkeys(chosen)], problems


def _print_studies(studies: Found, as_json: bool) -> None:
    sections = Studies(studies)
    made = [(entry, counts(entry, records), sections.tables(entry.name)) for entry, records in studies]
    if as_json:
        words = [
            {
                "study": entry.name,
                "title": entry.title,
                "runs": runs,
                "tables": [plain_table(table) for table in tables],
            }
            for entry, runs, tables in made
        ]
        print_json({"studies": words})
        return
    for entry, runs, tables in made:
        for table in tables:
            print_table(table)
            print_line("")
        print_line(f"{entry.name}: {runs}")


def _renew(documents: Sequence[Path], studies: Studies, check: bool, as_json: bool) -> None:
    """Everything is made before anything is written."""
    files = [each for document in documents for each in renew(document, studies)]
    old = [each for each in files if each.outdated]
    for each in old:
        if not check:
            write_file(each.path, each.content)
    if as_json:
        print_json({"checked": [str(x.path) for x in files], "outdated": {str(x.path): list(x.outdated) for x in old}})
    else:
        for each in files:
            verb = "out of date in" if check else "renewed in"
            print_line(
                f"{verb} {each.path}: {', '.join(each.outdated)}" if each.outdated else f"{each.path} is up to date"
            )
    if check and old:
        raise SystemExit(1)


def _read(file: Path) -> ReportData:
    text = read_text(file)
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{file} is not JSON: {error}") from error
    if isinstance(content, dict) and "title" not in content and "rr" in content:
        diagnosis = Diagnosis.from_json(text)
        return ReportData(title="Diagnosis", model=file.stem, data=f"{diagnosis.images} images", diagnosis=diagnosis)
    return ReportData.from_json(text)
