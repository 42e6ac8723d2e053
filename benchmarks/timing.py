"""Timing as the benchmarks do it: the best of several runs, after one to warm up."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from repairability.provenance import processor


def seconds(function: Callable[[], object], repeats: int = 5) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def machine() -> str:
    """What a figure must carry: the processor, the threads, the versions."""
    return f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
