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
    settled: dict[str, str] = field(default_factory=dict)  # run id -> known, done, failed or elsewhere

    def settle(self, run_id: str, how: str) -> None:
        self.settled[run_id] = how
        setattr(self, how, getattr(self, how) + 1)

    def reopen(self, run_id: str, reason: str) -> None:
        """A run that counted as settled has no record after all."""
        how = self.settled.pop(run_id)
        setattr(self, how, getattr(self, how) - 1)
        self.leave_open(run_id, reason)

    def leave_open(self, run_id: str, reason: str) -> None:
        self.open += 1
        self.problems.append(f"run {run_id} stays open: {reason}")

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
    entry = replace(study, run_ids=tuple(job.run_id for job in jobs))
    progress, tell = Progress(total=len(jobs)), watch or (lambda _: None)
    aside = store.write_study(entry, part=part)
    if aside is not None:
        progress.problems.append(f"the store's file of study {study.name} was damaged; kept as {aside.name}")
    wanted = ("open", "damaged", "failed") if retry_failed else ("open", "damaged")
    pending = []
    for job in jobs:
        state, problem = _state(store, job.run_id)
        if state in wanted:
            pending.append(job)
        elif state == "unread":
            progress.leave_open(job.run_id, problem)
        elif state == "foreign":
            progress.problems.append(problem)
            progress.foreign += 1
        else:
            progress.settle(job.run_id, "failed" if state == "failed" else "known")
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
                state, problem = _state(store, job.run_id)
                if state == "damaged":  # it is ours to move: whoever makes it again must claim it first
                    progress.problems.append(f"{problem}; kept as {store.set_aside(job.run_id).name} and run again")
                if state not in wanted:
                    lock.release()
                    if state == "unread":
                        progress.leave_open(job.run_id, problem)
                    else:
                        progress.settle(job.run_id, "elsewhere")
                    tell(progress)
                    continue
                claims[job.run_id] = lock
                progress.running += 1
                tell(progress)
                handed_out = True
                yield job.to_dict()
            if waiting and not handed_out:
                yield None

    place = executor if executor is not None and pending[:limit] else InProcess()  # for no run no cluster begins
    try:
        with closing(place.run(run_job, unclaimed())) as outcomes:
            for content, outcome in outcomes:
                run_id = content["run_id"]
                record = Record.from_dict(outcome) if isinstance(outcome, dict) else None
                if record is not None:
                    store.write(record)
                claims.pop(run_id).release()
                progress.running -= 1
                in_a_row = 0 if record is not None else in_a_row + 1
                if record is None:
                    progress.leave_open(run_id, str(outcome))
                else:
                    progress.settle(run_id, record.status)
                if record is not None and record.status == "failed":
                    progress.problems.append(f"run {run_id} failed: {record.error.splitlines()[0]}")
                tell(progress)
    finally:
        for lock in claims.values():
            lock.release()
    if not store.members(study.name):  # the store was removed meanwhile, the study with it
        store.write_study(entry, part=part)
    for run_id in list(progress.settled):
        state, problem = _state(store, run_id)
        if state in ("open", "damaged", "unread"):
            progress.reopen(run_id, problem or "its record is gone")
    tell(progress)
    return progress


def _state(store: Store, run_id: str) -> tuple[str, str]:
    """What there is of a run: "done" or "failed" (its record), "open" (none), "foreign", "damaged", or "unread" where
    the place does not let us see; and of these three, what is wrong.
    """
    try:
        record = store.read(run_id)
    except ForeignRecordError as error:
        return "foreign", str(error)
    except InputError as error:
        return "unread" if of_the_place(error) else "damaged", str(error)
    return "open" if record is None else record.status, ""
