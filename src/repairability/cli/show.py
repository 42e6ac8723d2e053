"""Verbs that tell a story: demo, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from repairability._files import read_text, write_atomically
from repairability.cli.options import AsJson, Seed, Threads, print_json, print_line, print_table, use_threads
from repairability.demo import SPARSITIES, run_demo
from repairability.diagnostics import Diagnosis
from repairability.errors import InputError
from repairability.experiments import Store
from repairability.experiments.archive import is_archive, read_archive, write_archive
from repairability.report import FORMATS, ReportData, write_report
from repairability.report.store import write_store_report
from repairability.report.tables import named_tables

ARCHIVE = "archive"
Formats = Annotated[
    str,
    typer.Option(
        "--format",
        help=f"With commas between: {', '.join(FORMATS)}; of a store also {ARCHIVE}: two CSV files with all of it.",
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
    out: Annotated[Path, typer.Option("--out", help="The HTML page, or a folder for the other formats.")] = Path(
        "report.html"
    ),
    formats: Formats = "html",
    as_json: AsJson = False,
) -> None:
    """Turn a record, or a store of runs, into one self-contained HTML page, and into tables and figures for papers.

    Example: repairability report demo/demo.json --out report.html --format html,md,latex,png
    Example: repairability report --store runs --out studies.html
    """
    chosen = [name.strip() for name in formats.split(",")]
    if (file is None) == (store is None):
        raise InputError("report takes either a FILE or --store DIR")
    written = write_report(_read(file), out, chosen) if file is not None else _write_store(store, out, chosen)
    if as_json:
        print_json({"written": [str(path) for path in written]})
    else:
        for path in written:
            print_line(f"wrote {path}")


def _write_store(folder: Path | None, out: Path, formats: list[str]) -> list[Path]:
    if folder is None or not folder.is_dir():
        raise InputError(f"there is no store at {folder}")
    if is_archive(folder):
        return write_store_report(read_archive(folder), [], out, formats)
    store = Store(folder)
    if formats == [ARCHIVE]:
        return write_archive(store, out)
    studies = [(entry, store.read_all(entry.run_ids)[0]) for entry in store.studies()]
    _, problems = store.read_all()
    return write_store_report(studies, problems, out, formats)


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
