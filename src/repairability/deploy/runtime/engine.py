"""One module, planned for each shape that comes: which kernel for which layer, checked against the module itself."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from repairability.deploy.runtime.executor import TIMES, Executor
from repairability.deploy.runtime.graph import read
from repairability.deploy.runtime.measures import LayerTime, check_same, quickest, timed
from repairability.deploy.runtime.planner import Planner
from repairability.deploy.runtime.stages import LinearStage, Staged
from repairability.progress import track

WORTH = 1.05
"""So many times as fast as one thread all of them must be, or one runs alone and leaves the others to those in need."""

BOUTS = 4

SHAPES = 8
"""Plans that are kept, of the shapes that came last."""


class Engine:
    """Runs `module`, a copy of ours in eval mode, by the kernels. Which ones, the example's shape decides."""

    def __init__(self, module: nn.Module, example: Tensor, threads: int, kernels: str = "measured") -> None:
        self.module, self.threads = module, threads
        self.times: list[LayerTime] = []
        self.executors: OrderedDict[tuple[int, ...], Executor] = OrderedDict()
        self.lock = threading.Lock()  # of the executors: a server's threads bring shapes at once
        example = example.clone()  # the module may write into what it is given
        with torch.no_grad():
            network = read(module, example)
            self.dense = self._chosen(network, example, kernels)
            executor = self._executor(network, example)
            if threads > 1:  # where layers are short, threads wait for each other longer than they work
                single = self._planned(network, example, self.dense, 1)
                ways = [lambda: executor(example), lambda: single(example)]
                # by medians: what else the machine does strikes threads that wait for each other twice, not by chance;
                # and the least of some of them, since a tenth of a second may have been another's as a whole
                bouts = [timed(ways, seconds=0.1) for _ in range(BOUTS)]
                together, alone = (min(medians) for medians in zip(*bouts, strict=True))
                if alone < WORTH * together:
                    self.threads, self.executors[tuple(example.shape)] = 1, single

    def __call__(self, batch: Tensor) -> Tensor:
        shape = tuple(batch.shape)
        with self.lock:
            executor = self.executors.get(shape)
            if executor is not None:
                self.executors.move_to_end(shape)
        if executor is None:
            with torch.no_grad():
                if not batch.numel():
                    empty: Tensor = self.module(batch)
                    return empty
                executor = self._executor(read(self.module, batch.clone()), batch)
        return executor(batch)

    def _executor(self, network: Staged, batch: Tensor) -> Executor:
        """For a new shape: planned, and checked on the batch and on numbers from a fixed seed."""
        executor = self._planned(network, batch, self.dense, self.threads)
        drawn = torch.randn(batch.shape, generator=torch.Generator().manual_seed(0))
        for images in (batch, drawn):
            check_same(executor(images), self.module(images.clone()), f"on shape {tuple(batch.shape)}")
        with self.lock:
            self.executors[tuple(batch.shape)] = executor
            while len(self.executors) > SHAPES:
                self.executors.popitem(last=False)
        return executor

    def _planned(self, network: Staged, batch: Tensor, dense: frozenset[int], threads: int) -> Executor:
        plan = Planner(network, len(batch), dense, threads).plan()
        return Executor(plan, tuple(batch.shape), (len(batch), *network.shapes[network.output]), threads)

    def _chosen(self, network: Staged, example: Tensor, kernels: str) -> frozenset[int]:
        """The stages that are faster by the dense kernel, each timed on its own with both."""
        both = [k for k, stage in enumerate(network.stages) if isinstance(stage, LinearStage) and stage.groups == 1]
        ways = [self._planned(network, example, frozenset(x), 1) for x in ((), both)]
        for executor in ways:
            executor(example)
        chosen = set()
        for number in track(both, "timing layers", len(both)):
            stage = network.stages[number]
            assert isinstance(stage, LinearStage)
            taken = quickest([_stage(executor, number) for executor in ways], seconds=0.04)
            images = len(example) if len(network.shapes[stage.source]) == 3 else 1
            sparse, dense = (x / TIMES * images for x in taken)
            if kernels == "dense" or (kernels == "measured" and dense < sparse):
                chosen.add(number)
            if stage.layer:
                zeros = 1 - float(torch.count_nonzero(stage.weight)) / max(1, stage.weight.numel())
                way = "dense" if number in chosen else "sparse"
                self.times.append(LayerTime(stage.name, zeros, 1e3 * dense, 1e3 * sparse, way))
        return frozenset(chosen)


def _stage(executor: Executor, number: int) -> Callable[[], None]:
    owners = executor.plan.owners
    begin = owners.index(number)
    end = begin + owners.count(number)
    return lambda: executor.alone(begin, end)
