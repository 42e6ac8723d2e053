"""Worker processes, each with a pipe of its own to the driver: they share no lock, so none can die with another's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

JobContent = dict[str, Any]
Result = dict[str, Any] | str
Function = Callable[[JobContent], Result]

PATIENCE = 3.0
"""Seconds in which a worker that is told to end may tidy up: half files go."""


class WorkerDied(Exception):
    """A worker ended before its job did."""


class Worker:
    """A process that runs one job after the other."""

    def __init__(self, function: Function) -> None:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=[function, theirs])
        with _uninterrupted():  # the worker begins deaf to Ctrl-C, which is the driver's
            self.process.start()
        theirs.close()  # the worker's alone, so that its end is the pipe's

    def run(self, job: JobContent) -> Result:
        """What the function makes of the job; what it raises is raised here."""
        try:
            self.pipe.send(job)
            outcome = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.kill()
            raise WorkerDied(f"exit code {self.process.exitcode}") from error
        if isinstance(outcome, Exception):
            raise outcome
        result: Result = outcome
        return result

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Team:
    """Workers for threads that each want a job run: an idle one that is alive, or a new one."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.all: list[Worker] = []
        self.idle: list[Worker] = []
        self.stopped = False
        self.changing = threading.Lock()

    def run(self, job: JobContent) -> Result:
        worker = self._take()
        try:
            return worker.run(job)
        finally:
            self.idle.append(worker)  # a dead one is not taken again

    def _take(self) -> Worker:
        with self.changing:
            while self.idle:
                worker = self.idle.pop()
                if worker.process.is_alive():
                    return worker
                self.all.remove(worker)  # it died, its job with it or without one: that costs no other job an attempt
            if self.stopped:
                raise WorkerDied("the sweep ends")
            self.all.append(Worker(self.function))
            return self.all[-1]

    def stop(self) -> None:
        """End them all, whatever they run; whoever waits for one sees it die, and no other begins."""
        with _uninterrupted():
            with self.changing:
                self.stopped = True
                self.idle.clear()
            workers = list(self.all)
            for worker in workers:
                worker.process.terminate()
            for worker in workers:
                worker.process.join(PATIENCE)
                worker.kill()


def _serve(function: Function, pipe: Connection) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):  # the driver is gone
            return
        try:
            outcome: object = function(job)
        except Exception as error:
            outcome = error
        pipe.send(outcome)


def _end_with_the_driver() -> None:
    """A worker whose driver is gone ends, whatever it runs."""
    driver = multiprocessing.parent_process()
    assert driver is not None
    driver.join()
    os._exit(1)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits; what is started in here never hears it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
