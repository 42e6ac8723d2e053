"""What is measured and checked when a network is accelerated."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from repairability.errors import RepairabilityError

KERNELS = ("measured", "dense", "sparse")
TOLERANCE = 1e-4
"""Of the largest output. Another order of summation moves the last bits; a wrong tap moves everything."""


class WrongAnswer(RepairabilityError):
    """The runtime and the plain network differ: a fault of ours."""


@dataclass(frozen=True)
class LayerTime:
    """A layer, and what one thread takes for the example's batch, in milliseconds."""

    name: str
    sparsity: float
    dense: float
    sparse: float
    chosen: str


def timed(functions: Sequence[Callable[[], object]], seconds: float, least: int = 5) -> list[float]:
    """The median of each, in turn, so that a slow moment is everyone's. Each turn begins with a call that is not
    counted: of the one before it, torch's idle threads go on turning for some milliseconds.
    """
    return [statistics.median(taken) for taken in _times(functions, seconds, least, warm=True)]


def quickest(functions: Sequence[Callable[[], object]], seconds: float, least: int = 5) -> list[float]:
    """The least of each: what else the machine does only adds to a time, so that a choice is made by these."""
    return [min(taken) for taken in _times(functions, seconds, least, warm=False)]


def _times(functions: Sequence[Callable[[], object]], seconds: float, least: int, *, warm: bool) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in functions]
    begun, rounds = time.perf_counter(), 0
    while rounds < least or (time.perf_counter() - begun < seconds and rounds < 100):
        for function, taken in zip(functions, times, strict=True):
            if warm:
                function()
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
        rounds += 1
    return times


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
