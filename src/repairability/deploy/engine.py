"""One module, planned for each shape that comes: which kernel for which layer, checked against the module itself."""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repairability.deploy.executor import Executor
from repairability.deploy.graph import Network, Product, read
from repairability.deploy.plan import Planner
from repairability.errors import RepairabilityError
from repairability.progress import track

KERNELS = ("measured", "dense", "sparse")
TOLERANCE = 1e-4
"""Of the largest output. Another order of summation moves the last bits; a wrong tap moves everything."""

SHAPES = 8
"""Plans that are kept, of the shapes that came last."""


class WrongAnswer(RepairabilityError):
    """The runtime and the plain network differ: a fault of ours."""


@dataclass(frozen=True)
class LayerTime:
    """A layer, and what it takes in milliseconds for one image (a linear layer: for the example's batch)."""

    name: str
    sparsity: float
    dense: float
    sparse: float
    chosen: str


class Engine:
    """Runs `module`, a copy of ours in eval mode, by the kernels. The example's shape decides the kernels of all shapes."""

    def __init__(self, module: nn.Module, example: Tensor, threads: int, kernels: str = "measured") -> None:
        self.module, self.threads = module, threads
        self.times: list[LayerTime] = []
        self.executors: OrderedDict[tuple[int, ...], Executor] = OrderedDict()
        with torch.no_grad():
            network = read(module, example)
            self.dense = self._chosen(network, example, kernels)
            self._executor(network, example)

    def __call__(self, batch: Tensor) -> Tensor:
        shape = tuple(batch.shape)
        executor = self.executors.get(shape)
        if executor is None:
            with torch.no_grad():
                executor = self._executor(read(self.module, batch), batch)
        self.executors.move_to_end(shape)
        return executor(batch)

    def _executor(self, network: Network, batch: Tensor) -> Executor:
        """For a new shape: planned, and checked on the batch and on numbers from a fixed seed."""
        executor = self._planned(network, batch, self.dense, self.threads)
        drawn = torch.randn(batch.shape, generator=torch.Generator().manual_seed(0))
        for images in (batch, drawn):
            check_same(executor(images), self.module(images), f"on shape {tuple(batch.shape)}")
        self.executors[tuple(batch.shape)] = executor
        while len(self.executors) > SHAPES:
            self.executors.popitem(last=False)
        return executor

    def _planned(self, network: Network, batch: Tensor, dense: frozenset[int], threads: int) -> Executor:
        plan = Planner(network, len(batch), dense, threads).plan()
        return Executor(plan, tuple(batch.shape), (len(batch), *network.shapes[network.output]), threads)

    def _chosen(self, network: Network, example: Tensor, kernels: str) -> frozenset[int]:
        """The stages that are faster by the dense kernel, each timed on its own with both."""
        both = [k for k, stage in enumerate(network.stages) if isinstance(stage, Product) and stage.groups == 1]
        ways = [self._planned(network, example, frozenset(x), 1) for x in ((), both)]
        for executor in ways:
            executor(example)
        chosen = set()
        for number in track(both, "timing layers", len(both)):
            stage = network.stages[number]
            assert isinstance(stage, Product)
            sparse, dense = timed([_stage(executor, number) for executor in ways], seconds=0.02)
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


def timed(functions: Sequence[Callable[[], object]], seconds: float, least: int = 5) -> list[float]:
    """The median of each, in turn, so that a slow moment is everyone's."""
    times: list[list[float]] = [[] for _ in functions]
    begun, rounds = time.perf_counter(), 0
    while rounds < least or (time.perf_counter() - begun < seconds and rounds < 100):
        for function, taken in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
        rounds += 1
    return [statistics.median(taken) for taken in times]


def check_same(given: Tensor, expected: Tensor, where: str) -> None:
    """Equal to rounding, or an error."""
    if given.shape != expected.shape:
        raise WrongAnswer(f"the runtime answers in shape {tuple(given.shape)}, not {tuple(expected.shape)}, {where}")
    if not expected.numel():
        return
    largest = float(expected.abs().max())
    apart = float((given - expected).abs().max())
    if not apart <= TOLERANCE * largest + 1e-6:
        raise WrongAnswer(f"the runtime is {apart:.3g} off where the largest output is {largest:.3g}, {where}")
