"""Timing as the benchmarks do it: the best of several runs, after one to warm up."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch


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
    info = Path("/proc/cpuinfo")
    names = (
        [x.split(":")[1].strip() for x in info.read_text(encoding="utf-8").splitlines() if "model name" in x]
        if info.exists()
        else []
    )
    processor = names[0] if names else platform.processor()
    return f"{processor}, {torch.get_num_threads()} threads, torch {torch.__version__}"
