"""A plan at work: arenas, threads, and one call of the kernels for each of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from repairability.deploy.runtime import kernels
from repairability.deploy.runtime.plan import Plan
from repairability.deploy.runtime.program import Floats

TIMES = 4
"""How often steps are made when they are timed: some are as short as their call."""

_NOTHING = np.zeros(1, np.float32)


class Executor:
    """Runs a plan on batches of its shape, one at a time; the arenas are its own.

    Threads take an image each; what is left over, and the features of the whole batch, they compute together, each its
    share of the filters of every step.
    """

    def __init__(self, plan: Plan, shape: tuple[int, ...], out: tuple[int, ...], threads: int) -> None:
        self.plan, self.shape, self.out, self.threads = plan, shape, out, threads
        self.program = tuple(vars(plan.program).values())
        alone = min(threads, shape[0]) if plan.images else 1
        self.arenas = [plan.new_arena() for _ in range(alone)]
        self.features = plan.new_features()
        self.counter = np.zeros(8, np.int64)
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def __call__(self, batch: Tensor) -> Tensor:
        with self.lock:
            images, outputs = _NOTHING, _NOTHING
            count, (begin, size) = self.shape[0], self.plan.outputs
            if self.plan.inputs < 0:
                images = batch.detach().contiguous().view(-1).numpy()
            else:
                given = batch.detach().contiguous().view(-1).numpy()
                kernels.turned(given, *self.shape, self.shape[1], self.features[self.plan.inputs :], self.plan.samples)
            if begin < 0:
                outputs = np.empty(count * size, np.float32)
            together = count // self.threads * self.threads
            self._apart(together, images, outputs)
            self._jointly(0, self.plan.images, self.arenas[0], images, outputs, together, count)
            self._jointly(self.plan.images, len(self.plan.owners), self.features, images, outputs, 0, 1)
            if begin < 0:
                return torch.from_numpy(outputs).view(self.out)
            outputs = np.empty(count * size, np.float32)
            kernels.turned(self.features[begin:], size, count, self.plan.samples, outputs, size)
            return torch.from_numpy(outputs).view(self.out)

    def _apart(self, count: int, images: Floats, outputs: Floats) -> None:
        """Each thread runs the whole program on images of its own."""
        if not count or not self.plan.images:
            return
        share = count // self.threads
        waiting = [
            self.pool.submit(
                self._run, 0, self.plan.images, self.arenas[k], images, outputs, k * share, (k + 1) * share
            )
            for k in range(1, self.threads)
            if self.pool is not None
        ]
        self._run(0, self.plan.images, self.arenas[0], images, outputs, 0, share)
        for job in waiting:
            job.result()

    def _jointly(
        self, begin: int, end: int, arena: Floats, images: Floats, outputs: Floats, first: int, last: int
    ) -> None:
        """All threads share every step."""
        if begin >= end or first >= last:
            return
        self.counter[0] = 0
        where = (begin, end, arena, images, outputs, first, last)
        waiting = [
            self.pool.submit(self._run, *where, k, self.threads)
            for k in range(1, self.threads)
            if self.pool is not None
        ]
        self._run(*where, 0, self.threads)
        for job in waiting:
            job.result()

    def _run(
        self,
        begin: int,
        end: int,
        arena: Floats,
        images: Floats,
        outputs: Floats,
        first: int,
        last: int,
        member: int = 0,
        team: int = 1,
    ) -> None:
        samples = self.plan.samples
        where = (arena, self.features, samples, images, outputs, first, last)
        kernels.run(self.program, begin, end, *where, member, team, self.counter)

    def alone(self, begin: int, end: int) -> None:
        """Products of one image, or of the batch, `TIMES` over in one thread, on what the arenas hold: to be timed."""
        on_images = begin < self.plan.images
        images = np.zeros(TIMES * int(np.prod(self.shape[1:])), np.float32) if on_images else _NOTHING
        self._run(begin, end, self.arenas[0] if on_images else self.features, images, _NOTHING, 0, TIMES)
