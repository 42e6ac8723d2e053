"""The verb sweep: run a study."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typer import Argument, Option

from repairability._files import check_folder
from repairability.cli import options
from repairability.cli.output import Answer, notices
from repairability.errors import InputError
from repairability.naming import named
from repairability.progress import live
from repairability.tables import Table, percent

if TYPE_CHECKING:
    from repairability.experiments import Executor, Job, Progress, Record, Store, Study


@dataclass(frozen=True)
class Execution:
    """Where the runs are done."""

    panel: ClassVar[str] = "Where it runs"
    executor: str = Option(
        "local", help=f"{options.EXECUTORS}: see above.", autocompletion=options.completing(options.EXECUTORS)
    )
    workers: int = Option(2, help="For processes: how many.")
    address: str | None = Option(None, help="For ray: of a running cluster ('auto': this machine's).")
    gpus: float = Option(0.0, help="For ray: GPUs each job takes.")
    retries: int = Option(3, help="How often a job whose worker died is tried again.")
    device: str = options.DEVICE

    def build(self) -> Executor:
        from repairability._torch import device_of
        from repairability.experiments import EXECUTORS

        if self.executor != "ray":  # a cluster's machines have devices of their own
            device_of(self.device)
        return named("executor", self.executor, EXECUTORS)(**vars(self))


def verb(
    execution: Execution,
    file: Path = Argument(..., metavar="STUDY", help="A study: studies/NAME.toml, or one of your own."),
    store: Path = Option(Path("runs"), metavar="DIR", help="Where records go, and are looked for."),
    files: list[Path] | None = Option(None, metavar="DIR", help="Where weights and NAME.npz data lie (repeatable)."),
    root: Path = options.ROOT,
    known: Path | None = Option(None, metavar="DIR", help="An archive (results/): its runs are copied instead of run."),
    only: list[str] | None = Option(None, metavar="SETTING=VALUE", help="Only these cells, such as rule=rr."),
    limit: int | None = Option(None, help="At most so many new runs."),
    retry_failed: bool = Option(False, "--retry-failed", help="Run again what failed before."),
    smoke: bool = Option(
        False,
        "--smoke",
        help="In seconds: random or the trained digits weights, noise or digits, 64 images; its figures mean nothing.",
    ),
    dry_run: bool = Option(False, "--dry-run", help="Show the cells and their state; run none."),
) -> Answer:
    """Run every cell of a study that has no record yet, then print its section of the report.

    A second call resumes where the first stopped, however it stopped; several calls may share one store and divide the
    work. local: one run after the other, here. processes: --workers at a time, each with its spec's own threads.
    ray: on a cluster (needs the extra of that name).

    Example: repairability sweep reproduction/studies/digits.toml --store runs
    """
    from repairability import experiments
    from repairability.experiments.archive import copy_known, read_archive
    from repairability.report.sections import get_section, study_section

    if not dry_run:
        check_folder(store)
    where, executor = experiments.Files(files or (), root), execution.build()
    for folder in where.folders:
        if not os.path.isdir(folder):
            raise InputError(f"--files {folder}: there is no such folder")
    read = experiments.read_study(file)
    study = experiments.smoke(read) if smoke else read
    for section in study.sections:
        get_section(section)  # a name nobody knows is said before the runs, not after them
    part = experiments.only(study, only) if only else study
    records = experiments.Store(store)
    archived = {} if known is None else read_archive(known)[1]
    with notices.working("looking at weights and data"):
        jobs = where.jobs(part.specs, store, execution.device)
    if dry_run:
        return _plan(part, jobs, records, archived)
    copied = copy_known(archived, records, [job.run_id for job in jobs])
    settings: dict[str, Any] = {"retry_failed": retry_failed, "limit": limit, "part": part is not study}
    with live(study.title) as update:

        def watch(now: Progress) -> None:
            update(now.total - now.left, now.total, f"failed {now.failed}, running {now.running}")

        progress = experiments.sweep(part, jobs, records, executor=executor, watch=watch, **settings)
    finished, problems = records.read_all(records.members(study.name))
    tables = study_section(study.sections, finished, smoke=study.smoke).tables
    said = "\n".join(progress.problems)
    problems = [*progress.problems, *(problem for problem in problems if problem not in said)]
    told = ("total", "known", "done", "elsewhere", "failed", "open", "foreign", "left")
    counts = {name: getattr(progress, name) for name in told}
    about = {"study": study.name, "store": store, **counts, "copied": copied, "problems": problems, "tables": tables}
    from_archive = f" ({copied} copied from {known})" if copied else ""
    line = (
        f"\n{study.name}: {progress.total} runs, {progress.known} known{from_archive}, {progress.done} done now, "
        f"{progress.elsewhere} done elsewhere, {progress.failed} failed, {progress.left} left; records in {store}"
    )
    return Answer(about, [*tables, line], problems, code=int(progress.failed + progress.open > 0))


def _plan(study: Study, jobs: list[Job], store: Store, archived: dict[str, Record]) -> Answer:
    known = {run_id: f"{record.status}, archived" for run_id, record in archived.items()}
    known |= {job.run_id: state for job in jobs if (state := _state(store, job.run_id))}
    shown = ("model", "data", "task", "rule", "repair", "sparsity", "seed", "count")
    cells: list[dict[str, Any]] = []
    for job in jobs:
        settings = {name: getattr(job.spec, name) for name in shown}
        cells.append({"run_id": job.run_id, "status": known.get(job.run_id, "to run"), **settings})
    rows = [[percent(value) if name == "sparsity" else str(value) for name, value in cell.items()] for cell in cells]
    to_run = sum(cell["status"] == "to run" for cell in cells)
    table = Table(("run_id", "status", *shown), rows, study.title, f"{len(cells)} cells, {to_run} to run")
    return Answer({"study": study.name, "cells": cells}, [table])


def _state(store: Store, run_id: str) -> str:
    """Of a run's record, empty where there is none, or where it is damaged and would be made again."""
    from repairability.experiments.record import ForeignRecordError

    try:
        record = store.read(run_id)
    except ForeignRecordError:
        return "not understood, left alone"
    except InputError:
        return ""
    return "" if record is None else record.status
