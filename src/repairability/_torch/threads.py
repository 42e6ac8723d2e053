"""CPU threads: how many, and workers of which each computes alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import torch

from repairability.errors import check_whole

MOST_THREADS = 1024
"""More than any machine of ours has; of a hundred thousand OpenMP dies, and the process with it."""

_BEGINNING = threading.Lock()
"""While workers begin, the process's number of threads is theirs."""


def take_threads() -> None:
    """A thread takes over the process's number of CPU threads where it first asks: now, while no workers begin."""
    with _BEGINNING:
        torch.get_num_threads()


@contextmanager
def workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads of which each computes alone. Kernels that share their work wait for the slowest thread at every step,
    and beside another busy process that is most of the time; these only wait when all is done.
    """
    begun = threading.Barrier(count + 1)

    def begin() -> None:
        torch.get_num_threads()  # a thread takes over the process's number where it first asks, so ask before
        torch.set_num_threads(1)
        with suppress(threading.BrokenBarrierError):
            begun.wait()

    pool = ThreadPoolExecutor(count, initializer=begin)
    try:
        with _BEGINNING:
            before = torch.get_num_threads()
            try:
                for _ in range(count):
                    pool.submit(int)  # a thread each: none is idle before all have begun
                begun.wait()
            except BaseException:  # an interrupt: those that have begun would wait for the others for ever
                begun.abort()
                pool.shutdown(cancel_futures=True)
                raise
            finally:
                torch.set_num_threads(before)  # for threads to come; the workers keep theirs
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def alone() -> Iterator[None]:
    """This thread computes alone meanwhile; those that come take over the process's number as ever."""
    before = torch.get_num_threads()
    try:
        if before > 1:
            with _BEGINNING:
                torch.set_num_threads(1)  # of this thread, and of the process; another thread gives it back its own
                giving = threading.Thread(target=torch.set_num_threads, args=[before])
                giving.start()
                giving.join()
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with so many CPU threads, as do those that come meanwhile; they decide the last bits of a sum."""
    check_whole(count, "threads", 1, MOST_THREADS)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
