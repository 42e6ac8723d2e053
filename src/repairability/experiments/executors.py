"""Where jobs run: in this process, in local processes, or on a Ray cluster. One verb: run(function, jobs).

`function` is a module-level function from a plain dict to a plain dict. `jobs` is asked for the next job when there is
room for it, and answers None when there is none just now. Each executor yields (job, result), in the order in which
they end; a result is the reason, as text, where the worker died too often.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from repairability.errors import InputError, MissingExtraError

Job = dict[str, Any]
Function = Callable[[Job], dict[str, Any]]
Results = Iterator[tuple[Job, dict[str, Any] | str]]

PAUSE = 0.2
"""Seconds to wait when every remaining job is somebody else's."""


@dataclass(frozen=True)
class InProcess:
    """One after the other, here."""

    name = "local"

    def run(self, function: Function, jobs: Iterator[Job | None]) -> Results:
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
    name = "processes"

    def run(self, function: Function, jobs: Iterator[Job | None]) -> Results:
        pool = self._pool()
        running: dict[Future[dict[str, Any]], tuple[Job, int]] = {}
        again: list[tuple[Job, int]] = []
        exhausted = False
        try:
            while running or again or not exhausted:
                while len(running) < self.workers and (again or not exhausted):
                    if again:
                        job, tried = again.pop()
                    else:
                        asked, tried = next(jobs, False), 0
                        if asked is False:
                            exhausted = True
                            break
                        if asked is None:
                            break
                        job = asked  # type: ignore[assignment]
                    try:
                        running[pool.submit(function, job)] = (job, tried + 1)
                    except BrokenProcessPool:  # found out only now
                        pool = self._renewed(pool)
                        again.append((job, tried))
                if not running:
                    time.sleep(0 if exhausted else PAUSE)
                    continue
                for future in wait(running, timeout=PAUSE, return_when=FIRST_COMPLETED).done:
                    job, tried = running.pop(future)
                    try:
                        yield job, future.result()
                    except BrokenProcessPool:
                        if tried < self.attempts:
                            again.append((job, tried))
                        else:
                            yield job, f"the worker died, {tried} times"
                if again and not running:  # the others' results are in: only now may the broken pool go
                    pool = self._renewed(pool)
        finally:
            _end(pool)

    def _pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        return ProcessPoolExecutor(self.workers, context, initializer=_begin_worker, initargs=(os.getpid(),))

    def _renewed(self, pool: ProcessPoolExecutor) -> ProcessPoolExecutor:
        _end(pool)
        return self._pool()


def _begin_worker(parent: int) -> None:
    """Ctrl-C is the driver's; a worker whose driver is gone ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PAUSE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _end(pool: ProcessPoolExecutor) -> None:
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.kill()


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster: `address` of a running one ("auto": the one this machine belongs to), or None for a fresh local
    one. Each job takes its spec's threads as CPUs; a job whose machine dies is tried again elsewhere.
    """

    address: str | None = None
    gpus: float = 0.0
    retries: int = 3
    name = "ray"

    def run(self, function: Function, jobs: Iterator[Job | None]) -> Results:
        ray = _ray()
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(
                f"no Ray cluster at {self.address!r} ({str(error).splitlines()[0]}); start one with "
                "'ray start --head', or leave --address away for a local one"
            ) from error
        task = ray.remote(function)
        running: dict[Any, Job] = {}
        exhausted = False
        try:
            while running or not exhausted:
                while not exhausted and len(running) < self._room(ray):
                    job = next(jobs, False)
                    if job is False:
                        exhausted = True
                    elif job is None:
                        break
                    else:
                        options = {"num_cpus": job["spec"]["threads"], "num_gpus": self.gpus}  # type: ignore[index]
                        running[task.options(max_retries=self.retries, **options).remote(job)] = job  # type: ignore[assignment]
                if not running:
                    time.sleep(0 if exhausted else PAUSE)
                    continue
                for done in ray.wait(list(running), timeout=PAUSE)[0]:
                    job = running.pop(done)
                    try:
                        yield job, ray.get(done)
                    except ray.exceptions.RayError as error:
                        yield job, f"Ray gave the job up: {str(error).splitlines()[0]}"
        finally:
            for reference in running:
                ray.cancel(reference, force=True)
            ray.shutdown()

    def _room(self, ray: Any) -> int:
        """One job per CPU of the cluster as it is now, and one waiting."""
        return int(ray.cluster_resources().get("CPU", 1)) + 1


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtraError("ray", "ray") from error
    return ray


Executor = InProcess | Processes | RayCluster
EXECUTORS = ("local", "processes", "ray")
