"""sweep: run every cell of a study that has no record yet, once, wherever the executor runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from filelock import FileLock

from repairability.errors import InputError
from repairability.experiments.executors import Executor, InProcess
from repairability.experiments.run import run_job
from repairability.experiments.spec import Job, read_as
from repairability.experiments.store import Record, Store
from repairability.experiments.study import Study


@dataclass
class Progress:
    """Where a sweep stands; `watch` sees it after every change."""

    total: int
    known: int = 0  # had a record before
    done: int = 0
    failed: int = 0
    running: int = 0
    elsewhere: int = 0  # done by another sweep meanwhile
    problems: list[str] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.total - self.known - self.done - self.failed - self.elsewhere


def sweep(
    study: Study,
    jobs: Sequence[Job],
    store: Store,
    *,
    executor: Executor | None = None,
    retry_failed: bool = False,
    limit: int | None = None,
    part: bool = False,
    watch: Callable[[Progress], None] | None = None,
) -> Progress:
    """Run the jobs that have no record. A failed run is a record too, tried again only with `retry_failed`; a damaged
    record is reported, set aside and made again. At most `limit` runs. `part`: the jobs are not the whole
    study, so those that the store knows of it stay its own.
    """
    ids = [job.run_id for job in jobs]
    if part:
        ids = list(dict.fromkeys([*store.members(study.name), *ids]))
    store.write_study(replace(study, run_ids=tuple(ids)))
    progress, tell = Progress(total=len(jobs)), watch or (lambda _: None)
    pending = []
    for job in jobs:
        record = _settled(store, job, progress, retry_failed)
        if record is None:
            pending.append(job)
        elif record.status == "failed":
            progress.failed += 1
        else:
            progress.known += 1
    tell(progress)
    claims: dict[str, FileLock] = {}

    def unclaimed() -> Iterator[dict[str, Any] | None]:
        """Jobs that nobody else is running, each claimed when it is handed out; None while the rest are others'."""
        waiting = pending[:limit]
        while waiting:
            handed_out = False
            for job in list(waiting):
                lock = store.claim(job.run_id)
                if lock is None:
                    continue
                waiting.remove(job)
                if _settled(store, job, progress, retry_failed) is not None:
                    lock.release()
                    progress.elsewhere += 1
                    tell(progress)
                    continue
                claims[job.run_id] = lock
                progress.running += 1
                tell(progress)
                handed_out = True
                yield job.to_dict()
            if waiting and not handed_out:
                yield None

    try:
        with closing((executor or InProcess()).run(run_job, unclaimed())) as outcomes:
            for content, outcome in outcomes:
                died = {**content, "status": "failed", "error": outcome}
                record = Record.from_dict(outcome) if isinstance(outcome, dict) else read_as(Record, died)
                store.write(record)
                claims.pop(record.run_id).release()
                progress.running -= 1
                if record.status == "done":
                    progress.done += 1
                else:
                    progress.failed += 1
                    progress.problems.append(f"run {record.run_id} failed: {record.error.splitlines()[0]}")
                tell(progress)
    finally:
        for lock in claims.values():
            lock.release()
    return progress


def _settled(store: Store, job: Job, progress: Progress, retry_failed: bool) -> Record | None:
    """The record of a job that is not to be run. A damaged one is set aside, a failed one may be tried again."""
    try:
        record = store.read(job.run_id)
    except InputError as error:
        aside = store.set_aside(job.run_id)
        progress.problems.append(f"{error}; kept as {aside.name} and run again")
        return None
    return None if record is not None and record.status == "failed" and retry_failed else record
