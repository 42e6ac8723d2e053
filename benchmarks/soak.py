"""Many prunings of mixed kinds in one process: memory, descriptors and threads must stay where they are.

    python benchmarks/soak.py [--prunes 500] [--seed 0] [--json]

Five small networks (convolutions, BatchNorm, residual links, 1-d, linear layers, attention), all recipes, several
rules, scores and repairs, files of both formats written and read, compacted and compared; every fourth one fails on
purpose: bad input, a network that raises, an interrupt in the midst of a pass. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import repairability as rp
from repairability.tables import Table

Batch = Tensor


class Attending(nn.Module):
    """Tokens through one layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.hidden, self.head = nn.Linear(16, 32), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        out: Tensor = self.head(self.hidden(x).relu().mean(1))
        return out


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1)),
        *(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(16, 10),
    )


def sequences() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv1d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 8, 3, padding=1), nn.AdaptiveAvgPool1d(1)),
        *(nn.Flatten(), nn.Linear(8, 3)),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))


NETWORKS: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (lambda: rp.create_model("digits"), (1, 16, 16)),
    (convolutions, (3, 9, 9)),
    (sequences, (4, 20)),
    (perceptron, (12,)),
    (Attending, (7, 6)),
]
WAYS: list[dict[str, Any]] = [
    {"recipe": "strong"},
    {"recipe": "paper", "repair": "cr+bn-short"},
    {"recipe": "fast", "repair": "bn-short"},
    {"recipe": "paper", "rule": "erk", "repair": "reconstruct"},
    {"recipe": "paper", "rule": "uniform", "score": "second_order", "repair": "none"},
    {"recipe": "fast", "rule": "global", "repair": "affine"},
    {"recipe": "paper", "rule": "lamp", "repair": "cr-mean", "budget": "macs"},
]
FORMATS: list[dict[str, str]] = [{}, {"format": "sparse"}, {"format": "sparse", "values": "int8"}]


def interrupting(calls: int) -> Callable[[nn.Module, Batch], Any]:
    """A forward of one's own, in the midst of which Ctrl-C comes."""
    counted = itertools.count(1)

    def forward(model: nn.Module, batch: Batch) -> Any:
        if next(counted) == calls:
            raise KeyboardInterrupt
        return model(batch)

    return forward


def failing(model: nn.Module, batch: Batch) -> Any:
    raise ValueError("on purpose")


def spoilt(images: Batch) -> Batch:
    return images.index_fill(0, torch.tensor([3]), torch.nan)


FAILURES: list[Callable[[nn.Module, Batch], object]] = [
    lambda model, images: rp.prune(model, spoilt(images), sparsity=0.9),
    lambda model, images: rp.prune(model, images, sparsity=0.9, forward=interrupting(2)),
    lambda model, images: rp.prune(model, images.flatten(), sparsity=0.9),
    lambda model, images: rp.prune(model, images, sparsity=0.9, forward=interrupting(5)),
    lambda model, images: rp.prune(model, images, sparsity=1.5),
    lambda model, images: rp.prune(model, images, sparsity=0.9, forward=failing),
    lambda model, images: rp.diagnose(model, images, repair="reconstruct", forward=interrupting(3)),
]


@dataclass(frozen=True)
class Level:
    """What the process holds behind so many prunings."""

    done: int
    failed: int
    memory_mb: float
    tensors: int  # that somebody holds
    descriptors: int
    threads: int
    python_threads: int


def level(done: int, failed: int) -> Level:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    descriptors = len(os.listdir("/proc/self/fd")) - 1  # but the one that lists them
    tensors = sum(isinstance(held, Tensor) for held in gc.get_objects())
    threads = len(os.listdir("/proc/self/task"))
    return Level(done, failed, memory, tensors, descriptors, threads, threading.active_count())


WARM = len(NETWORKS) * len(WAYS)
"""Behind so many, every kind has been there."""


def soak(prunes: int, every: int, seed: int = 0) -> Iterator[Level]:
    """The level at the start, behind the warm-up, and behind each `every` prunings."""
    draw = torch.Generator().manual_seed(seed)
    failed = 0
    yield level(0, 0)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few images and small networks
        for i in range(prunes):
            failed += _step(i, draw, Path(folder) / "net.safetensors")
            if i + 1 == WARM or (i + 1 > WARM and (i + 1) % every == 0) or i + 1 == prunes:
                yield level(i + 1, failed)


def _step(i: int, draw: torch.Generator, file: Path) -> bool:
    """The i-th pruning; whether it failed, as every fourth one must."""
    make, shape = NETWORKS[i % len(NETWORKS)]
    model, images = make(), torch.randn(48, *shape, generator=draw)
    if i % 4 != 3:
        one(model, images, WAYS[i % len(WAYS)], FORMATS[i % len(FORMATS)], file)
        return False
    try:
        FAILURES[i // 4 % len(FAILURES)](model, images)
    except (rp.InputError, KeyboardInterrupt):
        return True
    raise AssertionError(f"pruning {i} was to fail")


def one(model: nn.Module, images: Batch, way: dict[str, Any], format: dict[str, Any], file: Path) -> None:
    """Pruned, written, read, made smaller, compared."""
    result = rp.prune(model, images, sparsity=0.6, config=rp.PruneConfig(count=32), **way)
    result.save(file, **format)
    again = rp.load(file, model).model
    small = rp.compact(again, images[:4]).model
    rp.agreement(model, small, [images])
    str(result)


def figures(levels: Sequence[Level]) -> dict[str, float]:
    """Each of what is held at the start, behind the warm-up and at the end, as NAME_start, NAME_warm, NAME_end."""
    last = levels[-1]
    moments = {"start": levels[0], "warm": levels[min(1, len(levels) - 1)], "end": last}
    held = ("memory_mb", "tensors", "descriptors", "threads", "python_threads")
    found = {f"{name}_{moment}": getattr(now, name) for name in held for moment, now in moments.items()}
    return {"prunings": last.done, "failed_on_purpose": last.failed, **found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Memory, descriptors and threads over many prunings.")
    parser.add_argument("--prunes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    given = parser.parse_args()
    from timing import machine

    begun, levels = time.perf_counter(), []
    for now in soak(given.prunes, 100, given.seed):
        levels.append(now)
        print(f"{now.done} done: {now.memory_mb:.1f} MB", file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps(figures(levels)))
        sys.exit()
    rows = [[f"{value:.1f}" if name == "memory_mb" else str(value) for name, value in vars(x).items()] for x in levels]
    columns = ("prunings", "failed on purpose", "MB", "tensors", "descriptors", "threads", "of Python")
    print(Table(columns, rows, "Soak", f"{time.perf_counter() - begun:.0f} s; {machine()}"))
