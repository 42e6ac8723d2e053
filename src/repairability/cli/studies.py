"""The verb sweep: run a study."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from repairability.cli.options import AsJson, Device, Root, notices, plain_table, print_json, print_line, print_table
from repairability.errors import InputError, unknown
from repairability.experiments import (
    EXECUTORS,
    Executor,
    Files,
    InProcess,
    Job,
    Processes,
    Progress,
    RayCluster,
    Record,
    Store,
    Study,
    only,
    read_study,
    smoke,
    sweep,
)
from repairability.experiments.archive import archived_records, copy_known
from repairability.report.sections import get_section, study_section
from repairability.tables import Table, percent


def sweep_verb(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="A study: studies/NAME.toml, or one of your own.")],
    store: Annotated[Path, typer.Option("--store", metavar="DIR", help="Where records go, and are looked for.")] = Path(
        "runs"
    ),
    files: Annotated[
        list[Path] | None,
        typer.Option("--files", metavar="DIR", help="Where weights and NAME.npz data lie (repeatable)."),
    ] = None,
    root: Root = Path("data"),
    known: Annotated[
        Path | None,
        typer.Option("--known", metavar="DIR", help="An archive (results/): its runs are copied instead of run."),
    ] = None,
    chosen: Annotated[
        list[str] | None, typer.Option("--only", metavar="SETTING=VALUE", help="Only these cells, such as rule=rr.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="At most so many new runs.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run again what failed before.")] = False,
    executor: Annotated[str, typer.Option("--executor", help=f"{', '.join(EXECUTORS)}; see below.")] = "local",
    workers: Annotated[int, typer.Option("--workers", help="For processes: how many.")] = 2,
    address: Annotated[
        str | None, typer.Option("--address", help="For ray: of a running cluster ('auto': this machine's).")
    ] = None,
    gpus: Annotated[float, typer.Option("--gpus", help="For ray: GPUs each job takes.")] = 0.0,
    retries: Annotated[int, typer.Option("--retries", help="How often a job whose worker died is tried again.")] = 3,
    device: Device = "cpu",
    smoke_run: Annotated[
        bool,
        typer.Option("--smoke", help="In seconds: random weights, 64 images; its figures mean nothing."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the cells and their state; run none.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run every cell of a study that has no record yet, then print its section of the report.

    A second call resumes where the first stopped, however it stopped; several calls may share one store and divide the
    work. local: one run after the other, here. processes: --workers at a time, each with its spec's own threads.
    ray: on a cluster (needs the extra of that name).
    Example: repairability sweep studies/digits.toml --store runs
    """
    where = Files(files or (), root)
    for folder in where.folders:
        if not folder.is_dir():
            raise InputError(f"--files {folder}: there is no such folder")
    whole = smoke(read_study(study)) if smoke_run else read_study(study)
    for section in whole.sections:
        get_section(section)  # a name nobody knows is said before the runs, not after them
    part = only(whole, chosen) if chosen else whole
    records = Store(store)
    archived = {} if known is None else archived_records(known)
    with notices.status("looking at weights and data"):
        jobs = [where.job(spec, store, device) for spec in _by_network(part)]
    if dry_run:
        _show_plan(part, jobs, records, archived, as_json)
        return
    copied = copy_known(archived, records, [job.run_id for job in jobs])
    with _display(whole.title) as watch:
        found = sweep(
            part,
            jobs,
            records,
            executor=_executor(executor, workers, address, gpus, retries),
            retry_failed=retry_failed,
            limit=limit,
            part=part is not whole,
            watch=watch,
        )
    kept, problems = records.read_all(records.members(whole.name))
    tables = study_section(whole.sections, kept, smoke=whole.smoke).tables
    notes = [*found.problems, *problems]
    summary = {
        "study": whole.name,
        "store": str(store),
        "total": found.total,
        "known": found.known,
        "copied": copied,
        "done": found.done,
        "elsewhere": found.elsewhere,
        "failed": found.failed,
        "left": found.left,
        "problems": notes,
    }
    if as_json:
        print_json({**summary, "tables": [plain_table(table) for table in tables]})
    else:
        for table in tables:
            print_table(table)
            print_line("")
        from_archive = f" ({copied} copied from {known})" if copied else ""
        print_line(
            f"{whole.name}: {found.total} runs, {found.known} known{from_archive}, {found.done} done now, "
            f"{found.elsewhere} done elsewhere, {found.failed} failed, {found.left} left; records in {store}"
        )
        for problem in notes:
            notices.print(f"note: {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if found.failed:
        raise SystemExit(1)


def _by_network(study: Study) -> list[Any]:
    """Cells that share a network and images come together, so that each is loaded once."""
    return sorted(study.specs, key=lambda s: (s.model, s.weights or "", s.data, s.image_size or 0, s.seed, s.count))


def _executor(name: str, workers: int, address: str | None, gpus: float, retries: int) -> Executor:
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    if workers < 1 or retries < 0:
        raise InputError(f"--workers must be at least 1 and --retries at least 0, not {workers} and {retries}")
    if name == "ray":
        return RayCluster(address, gpus, retries)
    return Processes(workers, retries + 1) if name == "processes" else InProcess()


@contextmanager
def _display(title: str) -> Iterator[Callable[[Progress], None]]:
    """A live line on a terminal: done, failed, running, time left."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=notices, transient=True) as bar:
        task = bar.add_task(title, total=None, state="")

        def watch(now: Progress) -> None:
            state = f"failed {now.failed}, running {now.running}"
            bar.update(task, total=now.total, completed=now.total - now.left, state=state)

        yield watch


def _show_plan(study: Study, jobs: list[Job], store: Store, archived: dict[str, Record], as_json: bool) -> None:
    known = {run_id: f"{record.status}, archived" for run_id, record in archived.items()}
    known |= {record.run_id: record.status for record in store.read_all([job.run_id for job in jobs])[0]}
    rows = [
        {
            "run_id": job.run_id,
            "status": known.get(job.run_id, "to run"),
            "model": job.spec.model,
            "data": job.spec.data,
            "task": job.spec.task,
            "rule": job.spec.rule,
            "repair": job.spec.repair,
            "sparsity": job.spec.sparsity,
            "seed": job.spec.seed,
            "count": job.spec.count,
        }
        for job in jobs
    ]
    if as_json:
        print_json({"study": study.name, "cells": rows})
        return
    columns = list(rows[0])
    lines = [[percent(row[c]) if c == "sparsity" else str(row[c]) for c in columns] for row in rows]  # type: ignore[arg-type]
    to_run = sum(row["status"] == "to run" for row in rows)
    print_table(Table(columns, lines, study.title, f"{len(rows)} cells, {to_run} to run"))
