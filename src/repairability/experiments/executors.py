"""Where jobs run: in this process, in local processes, or on a Ray cluster. One verb: run(function, jobs).

`function` is a module-level function from a plain dict to a plain dict, or to the reason, as text, why there is no
result. `jobs` is asked for the next job when there is room for it, and answers None when there is none just now. Each
executor yields (job, result), in the order in which they end; a worker that died too often is such a reason too. A
worker's death is charged to its own job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from repairability.errors import InputError, MissingExtraError, PlaceError, first_line
from repairability.experiments.workers import Function, JobContent, Result, Team, WorkerDied

Jobs = Iterator[JobContent | None]
Results = Generator[tuple[JobContent, Result], None, None]
Submit = Callable[[JobContent], Future[Result]]

PAUSE = 0.2
"""Seconds to wait when every remaining job is somebody else's."""


def _outcomes(
    jobs: Jobs, submit: Submit, room: Callable[[], int], attempts: int, deaths: tuple[type[Exception], ...]
) -> Results:
    """Keep `room()` jobs submitted; one that ends in one of the `deaths` is tried again, up to `attempts` times."""
    running: dict[Future[Result], tuple[JobContent, int]] = {}
    exhausted = False
    while running or not exhausted:
        while not exhausted and len(running) < room():
            try:
                job = next(jobs)
            except StopIteration:
                exhausted = True
                break
            if job is None:
                break
            running[submit(job)] = job, 1
        if not running:
            time.sleep(0 if exhausted else PAUSE)
            continue
        for future in wait(running, timeout=PAUSE, return_when=FIRST_COMPLETED).done:
            job, attempt = running.pop(future)
            try:
                yield job, future.result()
            except deaths as death:
                if attempt < attempts:
                    running[submit(job)] = job, attempt + 1
                else:
                    yield job, f"the worker died, {attempt} times ({first_line(death)})"


@dataclass(frozen=True)
class InProcess:
    """One after the other, here."""

    def run(self, function: Function, jobs: Jobs) -> Results:
        for job in jobs:
            if job is None:
                time.sleep(PAUSE)
            else:
                yield job, function(job)


@dataclass(frozen=True)
class Processes:
    """Local processes; each runs a job with the spec's own threads. A worker that dies is replaced, and its job tried
    again.
    """

    workers: int
    attempts: int = 3

    def run(self, function: Function, jobs: Jobs) -> Results:
        team = Team(function)
        with ThreadPoolExecutor(self.workers) as threads:

            def submit(job: JobContent) -> Future[Result]:
                return threads.submit(team.run, job)

            try:
                yield from _outcomes(jobs, submit, lambda: self.workers, self.attempts, (WorkerDied,))
            finally:
                team.stop()


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster: `address` of a running one ("auto": the one this machine belongs to), or None for a fresh local
    one. Each job takes its spec's threads as CPUs; a job whose machine dies is tried again elsewhere. Where the head of
    the cluster dies, the sweep ends, by its own word or by Ray's.
    """

    address: str | None = None
    gpus: float = 0.0
    retries: int = 3

    def run(self, function: Function, jobs: Jobs) -> Results:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise MissingExtraError("ray", "ray") from error
        # a driver that waits for workers started ahead of it waits for ever where one of them dies at once
        alone: dict[str, Any] = {"_system_config": {"prestart_worker_first_driver": False}}
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
        try:
            if self.address is None:  # "local": Ray takes None for whichever cluster this machine may have already
                ray.init("local", **quiet, **alone)
            else:
                ray.init(self.address, **quiet)
        except Exception as error:  # Ray raises bare ones too
            if self.address is None:
                raise PlaceError(f"no Ray cluster began on this machine ({first_line(error)})") from error
            raise InputError(
                f"no Ray cluster at {self.address!r} ({first_line(error)}); start one with "
                "'ray start --head', or leave --address away for a local one"
            ) from error
        task = ray.remote(function)

        def submit(job: JobContent) -> Future[Result]:
            resources = {"num_cpus": job["spec"]["threads"], "num_gpus": self.gpus}
            return task.options(max_retries=0, **resources).remote(job).future()

        def room() -> int:  # a job per CPU of the cluster as it is now, and one waiting
            return int(ray.cluster_resources().get("CPU", 1)) + 1  # type: ignore[no-untyped-call]

        try:
            yield from _outcomes(jobs, submit, room, self.retries + 1, (ray.exceptions.RayError,))
        except ray.exceptions.RayError as error:  # of the cluster, not of a job
            raise PlaceError(f"the Ray cluster is gone ({first_line(error)})") from error
        finally:
            ray.shutdown()


Executor = InProcess | Processes | RayCluster
EXECUTORS: dict[str, Callable[..., Executor]] = {
    "local": lambda **_: InProcess(),
    "processes": lambda workers, retries, **_: Processes(workers, retries + 1),
    "ray": lambda address, gpus, retries, **_: RayCluster(address, gpus, retries),
}
"""Each takes what it needs of workers, address, gpus and retries."""
