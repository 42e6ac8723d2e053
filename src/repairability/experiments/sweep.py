"""sweep: run every cell of a study that has no record yet, once, wherever the executor runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from filelock import FileLock

from repairability.errors import InputError, check_whole, of_the_place
from repairability.experiments.executors import Executor, InProcess
from repairability.experiments.record import ForeignRecordError, Record
from repairability.experiments.run import run_job
from repairability.experiments.spec import Job
from repairability.experiments.store import Store
from repairability.experiments.study import Study

IN_A_ROW = 3
"""So many runs one after the other without a record, and the sweep begins no more: it is not the runs that fail."""

OPEN, UNREAD = "open", "unread"
"""Of a run: it has no record; it has one that cannot be looked at just now."""


@dataclass
class Progress:
    """Where a sweep stands; `watch` sees it after every change."""

    total: int
    known: int = 0  # had a record before
    done: int = 0
    failed: int = 0
    running: int = 0
    elsewhere: int = 0  # done by another sweep meanwhile
    open: int = 0  # ended without a record: the place failed, not the spec
    foreign: int = 0  # have a record that this version does not understand: left alone
    problems: list[str] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.total - self.known - self.done - self.failed - self.elsewhere - self.foreign


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
    record is reported, set aside and made again; one that is whole and that this version does not understand (a later
    version's, or of settings that are refused by now) is reported and left alone. What the place fails (a full disk, a
    device, a worker that dies) has no record: the run stays open, the problem is named. At most `limit` runs. `part`:
    the jobs are not the whole study, so those that the store knows of it stay its own.
    """
    if limit is not None:
        check_whole(limit, "limit", 0)
    ids = [job.run_id for job in jobs]
    if part:
        ids = list(dict.fromkeys([*store.members(study.name), *ids]))
    progress, tell = Progress(total=len(jobs)), watch or (lambda _: None)
    aside = store.write_study(replace(study, run_ids=tuple(ids)))
    if aside is not None:
        progress.problems.append(f"the store's file of study {study.name} was damaged; kept as {aside.name}")
    pending, to_run = [], {OPEN, "failed"} if retry_failed else {OPEN}
    for job in jobs:
        state = _state(store, job, progress)
        if state in to_run:
            pending.append(job)
        else:
            counter = {"done": "known", UNREAD: "open"}.get(state, state)
            setattr(progress, counter, getattr(progress, counter) + 1)
    tell(progress)
    claims: dict[str, FileLock] = {}
    in_a_row = 0

    def unclaimed() -> Iterator[dict[str, Any] | None]:
        """Jobs that nobody else is running, each claimed when it is handed out; None while the rest are others'."""
        waiting = pending[:limit]
        while waiting:
            handed_out = False
            for job in list(waiting):
                if in_a_row >= IN_A_ROW:
                    progress.problems.append(f"stopped: {in_a_row} runs one after the other ended without a record")
                    return
                lock = store.claim(job.run_id)
                if lock is None:
                    continue
                waiting.remove(job)
                state = _state(store, job, progress)
                if state not in to_run:
                    lock.release()
                    progress.open += state == UNREAD
                    progress.elsewhere += state != UNREAD
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
                run_id = content["run_id"]
                record = Record.from_dict(outcome) if isinstance(outcome, dict) else None
                if record is not None:
                    store.write(record)
                claims.pop(run_id).release()
                progress.running -= 1
                in_a_row = 0 if record is not None else in_a_row + 1
                if record is None:
                    progress.open += 1
                    progress.problems.append(f"run {run_id} stays open: {outcome}")
                elif record.status == "done":
                    progress.done += 1
                else:
                    progress.failed += 1
                    progress.problems.append(f"run {run_id} failed: {record.error.splitlines()[0]}")
                tell(progress)
    finally:
        for lock in claims.values():
            lock.release()
    return progress


def _state(store: Store, job: Job, progress: Progress) -> str:
    """What there is of a job: "done", "failed", "foreign", `UNREAD` where the place does not let us see, or `OPEN`. A
    damaged record is set aside; what is wrong with one is said.
    """
    try:
        record = store.read(job.run_id)
    except ForeignRecordError as error:
        progress.problems.append(str(error))
        return "foreign"
    except InputError as error:
        if of_the_place(error):
            progress.problems.append(f"{error}; its run stays open")
            return UNREAD
        aside = store.set_aside(job.run_id)
        progress.problems.append(f"{error}; kept as {aside.name} and run again")
        return OPEN
    return OPEN if record is None else record.status
