"""sweep: run every cell of a study that has no record yet, once, wherever the executor runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from repairability.errors import InputError
from repairability.experiments.executors import Executor, InProcess
from repairability.experiments.run import run_job
from repairability.experiments.shared import Job
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
    store.write_study(study.entry(ids))
    progress = Progress(total=len(jobs))
    pending = []
    for job in jobs:
        known = _known(store, job, progress)
        if known is not None and not (known.status == "failed" and retry_failed):
            if known.status == "failed":
                progress.failed += 1
            else:
                progress.known += 1
        else:
            pending.append(job)
    if limit is not None:
        pending = pending[:limit]
    queue = _Queue(store, pending, progress, retry_failed)
    tell = watch or (lambda _: None)
    tell(progress)
    try:
        for content, found in (executor or InProcess()).run(run_job, queue.jobs(tell)):
            run_id = content["run_id"]
            record = _dead(content, found) if isinstance(found, str) else Record.from_dict(found)
            store.write(record)
            queue.release(run_id)
            progress.running -= 1
            if record.status == "done":
                progress.done += 1
            else:
                progress.failed += 1
                progress.problems.append(f"run {run_id} failed: {record.error.splitlines()[0]}")
            tell(progress)
    finally:
        queue.close()
    return progress


class _Queue:
    """Jobs nobody else is running: each is claimed when it is handed out and released when its record is written."""

    def __init__(self, store: Store, pending: Sequence[Job], progress: Progress, retry_failed: bool) -> None:
        self.store, self.waiting, self.progress, self.retry = store, list(pending), progress, retry_failed
        self.claims: dict[str, ExitStack] = {}

    def jobs(self, tell: Callable[[Progress], None]) -> Iterator[dict[str, Any] | None]:
        """Every job that can be claimed; None while the others are somebody else's."""
        while self.waiting:
            handed_out = False
            for job in list(self.waiting):
                claim = ExitStack()
                if not claim.enter_context(self.store.claim(job.run_id)):
                    claim.close()
                    continue
                self.waiting.remove(job)
                known = _known(self.store, job, self.progress)
                if known is not None and not (known.status == "failed" and self.retry):
                    claim.close()
                    self.progress.elsewhere += 1
                    tell(self.progress)
                    continue
                self.claims[job.run_id] = claim
                self.progress.running += 1
                tell(self.progress)
                handed_out = True
                yield job.to_dict()
            if self.waiting and not handed_out:
                yield None

    def release(self, run_id: str) -> None:
        self.claims.pop(run_id).close()

    def close(self) -> None:
        for claim in self.claims.values():
            claim.close()
        self.claims.clear()


def _known(store: Store, job: Job, progress: Progress) -> Record | None:
    try:
        return store.read(job.run_id)
    except InputError as error:
        aside = store.set_aside(job.run_id)
        progress.problems.append(f"{error}; kept as {aside.name} and run again")
        return None


def _dead(content: Mapping[str, Any], reason: str) -> Record:
    job = Job.from_dict(dict(content))
    return Record(job.run_id, job.spec, "failed", error=reason)
