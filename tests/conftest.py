"""What several tests share: small networks, the paper's tables, real data where it is at hand."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import Tensor, nn

from forked import Forks
from repairability import PruneResult, create_model, prune
from repairability.pruning import PruneConfig

SHARED = Path(os.environ.get("REPAIRABILITY_SHARED", Path(__file__).parents[2] / "shared"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What lays out CIFAR-10 downloads it where it is not there yet: that is for `make check`."""
    for item in items:
        if "cifar10_file" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many hostile cases are right, and the rounds of faults by kind."""
    cases = [report.nodeid for report in terminalreporter.getreports("passed") if "tests/hostile/" in report.nodeid]
    rounds = Counter(match[1] for case in cases if (match := re.search(r"struck_sweep\w*\[(.+), \w+, \d+\]$", case)))
    if cases:
        terminalreporter.write_line(f"{len(cases)} hostile cases right")
    if rounds:
        kinds = ", ".join(f"{kind} {count}" for kind, count in rounds.items())
        terminalreporter.write_line(f"{rounds.total()} rounds of faults as undisturbed: {kinds}")


@pytest.fixture
def quiet() -> Iterator[None]:
    """Without the warnings that few images and small networks bring: BatchNorm cycles, little of it may be pruned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="session")
def result() -> PruneResult:
    """A small network, pruned: to be saved, read back, and left as it is."""
    images = torch.randn(60, 3, 9, 9, generator=torch.Generator().manual_seed(2))
    config = PruneConfig(count=40)
    model = create_model("networks:Residual")
    return prune(model, images, sparsity=0.8, rule="erk", score="magnitude", repair="cr", config=config)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the paper's tables, real data and trained networks."""
    if not (SHARED / "paper").is_dir():
        pytest.skip(f"needs the shared folder (paper tables, data, checkpoints) at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def paper(shared: Path) -> Callable[[str], list[dict[str, str]]]:
    """One table of the paper as rows."""

    def rows(name: str) -> list[dict[str, str]]:
        with (shared / "paper" / f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    return rows


@dataclass(frozen=True)
class Cifar10:
    """Normalised images: training ones (unlabeled) and a part of the test set."""

    train: Tensor
    test: Tensor
    labels: Tensor

    def accuracy(self, model: nn.Module) -> float:
        with torch.no_grad():
            right = [
                (model(x).argmax(1) == y).sum()
                for x, y in zip(self.test.split(500), self.labels.split(500), strict=True)
            ]
        return float(sum(right)) / len(self.labels)


@pytest.fixture(scope="session")
def cifar10_file(shared: Path) -> Path:
    """CIFAR-10 as npz, laid out once into the project's cache by the shared script."""
    cache_folder = Path(__file__).parents[1] / ".cache" / "data"
    file = cache_folder / "cifar10.npz"
    cache_folder.mkdir(parents=True, exist_ok=True)
    with FileLock(cache_folder / ".lock"):  # tests run in several processes
        if not file.exists():
            command = [sys.executable, str(shared / "data" / "prepare.py"), str(cache_folder), "cifar10"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode or not file.exists():
                pytest.skip(f"CIFAR-10 could not be laid out: {done.stderr.strip()[-200:]}")
    return file


@pytest.fixture(scope="session")
def cifar10(cifar10_file: Path) -> Cifar10:
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    def normalised(images: np.ndarray) -> Tensor:
        return (torch.from_numpy(images).float() / 255 - mean) / std

    with np.load(cifar10_file) as data:
        order = np.random.default_rng(0).permutation(50_000)[:2688]
        labels = torch.from_numpy(data["y_test"][:1000].astype(np.int64))
        return Cifar10(normalised(data["x_train"][order]), normalised(data["x_test"][:1000]), labels)


@pytest.fixture(scope="session")
def resnet20(shared: Path) -> nn.Module:
    """The public CIFAR-10 checkpoint."""
    return create_model("resnet20", weights=shared / "data" / "checkpoints" / "resnet20-12fca82f.th")


@cache
def torchvision_model(name: str) -> nn.Module:
    return create_model(name)


@pytest.fixture(scope="session")
def resnet18() -> nn.Module:
    return torchvision_model("resnet18")


@pytest.fixture
def small_net() -> nn.Module:
    """Three convolutions and a linear layer; enough for everything that is not about size."""
    return create_model("networks:small_net")


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """The command line, without the seconds of its imports."""
    server = Forks()
    yield server
    server.close()


@pytest.fixture(scope="session")
def inputs(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the verbs read."""
    from verbs import make_inputs

    made = tmp_path_factory.mktemp("inputs")
    make_inputs(made, forks)
    return made


@pytest.fixture
def folder(inputs: Path, tmp_path: Path) -> Path:
    """A folder of one's own with the inputs in it."""
    from verbs import fill

    fill(inputs, tmp_path)
    return tmp_path


def interruptible() -> None:
    """For a subprocess that a test interrupts: tests run in the background hand "ignore SIGINT" to their children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def one_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One test with a Ray cluster at a time: clusters share /tmp/ray, ports and memory, and two begin too slowly."""
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    with FileLock(tmp_path_factory.getbasetemp().parent / "ray.lock"):  # tests run in several processes
        yield


Made = TypeVar("Made")


def on_ray(begin: Callable[[], Made]) -> Made:
    """Once more where a node did not begin in time: Ray gives it 30 seconds, and a busy machine takes longer."""
    try:
        return begin()
    except Exception as error:  # Ray raises bare ones
        if "timed out" not in str(error).lower():
            raise
    return begin()


PATIENCE = 600.0
"""Seconds after which something hangs: generous, for a busy machine; nothing is measured by it."""


def eventually(condition: Callable[[], object], meanwhile: Callable[[], object] = int) -> bool:
    """Whether it comes true: what was told to begin or to end needs a moment."""
    deadline = time.monotonic() + PATIENCE
    while not (true := bool(condition())) and time.monotonic() < deadline:
        meanwhile()
        time.sleep(0.01)
    return true


def begun_since(threads: Iterable[threading.Thread]) -> set[threading.Thread]:
    """The threads that run beside these; one of an earlier test may end at any moment, so a count says nothing."""
    return set(threading.enumerate()).difference(threads)


def apart(function: Callable[[], Any]) -> BaseException | None:
    """Run it in a thread, so that a hang is a failure; what it raised, without the frames that it went through."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error.with_traceback(None))
        else:
            raised.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert raised, "it hangs"
    return raised[0]
