"""Several threads at one model, and interrupts at every line: nothing of it stays changed, no thread is left."""

from __future__ import annotations

import contextlib
import gc
import importlib
import linecache
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import PATIENCE, apart, begun_since, eventually
from networks import Residual
from repairability import PruneConfig, create_model, diagnose, prune
from repairability._torch import alone, evaluating, modes, random_state, workers
from repairability._torch import threads as threads_of
from repairability.network import streams as streams_module
from repairability.network.discover import layers_named
from repairability.network.streams import advance, streams
from test_sacred import complete_state, same

threads_module = importlib.import_module("repairability._torch.threads")  # the name in _torch is the function's
exact_module = importlib.import_module("repairability.solvers.exact")

IMAGES = torch.randn(60, 3, 9, 9, generator=torch.Generator().manual_seed(3))
BATCHES = list(torch.randn(10, 3, 9, 9, generator=torch.Generator().manual_seed(1)).split(4))


@contextlib.contextmanager
def everything_returns(model: nn.Module) -> Iterator[None]:
    """No thread is left, and the number of CPU threads, the random state and the model are as before."""
    before, running = complete_state(model), threading.enumerate()
    count, state, aside = torch.get_num_threads(), torch.get_rng_state(), os.fstat(1)
    yield
    assert eventually(lambda: not begun_since(running), gc.collect), begun_since(running)
    assert torch.get_num_threads() == count
    assert not random_state._Lent.borrowers
    assert torch.equal(torch.get_rng_state(), state)
    assert (os.fstat(1).st_dev, os.fstat(1).st_ino) == (aside.st_dev, aside.st_ino)
    assert same(complete_state(model), before)


WAYS: list[dict[str, Any]] = [
    {"recipe": "paper", "sparsity": 0.9, "repair": "cr+bn-short"},
    {"recipe": "strong", "sparsity": 0.9},
    {"recipe": "paper", "sparsity": 0.8, "repair": "cr+bn-short", "options": {"solver": "exact"}},
    {"recipe": "fast", "sparsity": 0.95, "repair": "bn-short"},
    {"recipe": "paper", "sparsity": 0.9, "repair": "reconstruct"},
    {"recipe": "paper", "sparsity": 0.7, "rule": "lamp", "repair": "affine+bn-short"},
]


def weights_of(model: nn.Module, way: dict[str, Any]) -> dict[str, Tensor]:
    config = PruneConfig(count=40, options=way.get("options", {}))
    given = {key: value for key, value in way.items() if key != "options"}
    return prune(model, IMAGES, config=config, **given).model.state_dict()


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Two threads that keep the machine busy."""
    over = threading.Event()

    def turn() -> None:
        matrix = torch.ones(64, 64)
        while not over.is_set():
            matrix = (matrix @ matrix).clamp(max=1)

    busy = [threading.Thread(target=turn) for _ in range(2)]
    for thread in busy:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in busy:
            thread.join()


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(("count", "rounds"), [(2, 6), (6, 4)])
def test_threads_prune_one_model_at_once(count: int, rounds: int, training: bool) -> None:
    """Bit for bit what they give one after the other."""
    model = Residual().train(training)
    ways = WAYS[:count]
    with threads_of(2):
        alone = [weights_of(model, way) for way in ways]
        with everything_returns(model):
            for round in range(rounds):
                with load() if round % 2 else contextlib.nullcontext(), ThreadPoolExecutor(count) as pool:
                    together = list(pool.map(lambda way: weights_of(model, way), ways))
                for way, one, other in zip(ways, alone, together, strict=True):
                    unlike = [name for name in one if not torch.equal(one[name], other[name])]
                    assert not unlike, f"round {round}, {way}: {unlike}"


def test_a_new_thread_while_workers_begin() -> None:
    """Meanwhile the process's number of threads is the workers'; a thread that took it over would compute alone ever
    after, and its sums would end in other bits.
    """
    model, found = Residual().eval(), list[int]()

    def ask() -> None:
        with evaluating(model):
            found.append(torch.get_num_threads())

    newcomer = threading.Thread(target=ask)
    with threads_of(3):
        with threads_module._BEGINNING:
            torch.set_num_threads(1)
            newcomer.start()
            newcomer.join(0.2)  # as long as it asks at once; where it waits, it may wait
            torch.set_num_threads(3)
        newcomer.join(PATIENCE)
    assert found == [3]


def test_a_new_thread_while_another_computes_alone() -> None:
    with threads_of(3):
        with alone():
            assert torch.get_num_threads() == 1
            assert numbers_of_a_new_thread() == [3]
        assert (torch.get_num_threads(), numbers_of_a_new_thread()) == (3, [3])


def numbers_of_a_new_thread() -> list[int]:
    found = list[int]()
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join(PATIENCE)
    return found


@pytest.mark.usefixtures("quiet")
def test_the_callers_random_state_decides_nothing() -> None:
    """Neither bits nor how many threads share the work; other threads change it at any moment."""
    model, found = create_model("digits"), []
    images = torch.randn(64, 1, 16, 16, generator=torch.Generator().manual_seed(3))
    with threads_of(2):
        for seed in (0, 1):
            torch.manual_seed(seed)
            found.append(diagnose(model, images).to_json())
    assert found[0] == found[1]


@pytest.mark.parametrize("which", range(3))
def test_an_interrupt_while_workers_begin(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = threading.Thread.start, list[threading.Thread]()

    def struck(self: threading.Thread) -> None:
        start(self)
        if self.name.startswith("ThreadPoolExecutor"):
            begun.append(self)
            if len(begun) == which + 1:
                raise KeyboardInterrupt

    def begin() -> None:
        with workers(3):
            pytest.fail("they cannot have begun")

    with everything_returns(Residual()):
        monkeypatch.setattr(threading.Thread, "start", struck)
        assert isinstance(apart(begin), KeyboardInterrupt)
        monkeypatch.undo()
    assert len(begun) == which + 1


@pytest.mark.parametrize("which", range(3))
def test_an_interrupt_while_streams_begin(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, begun = ThreadPoolExecutor.submit, list[Any]()

    def struck(self: ThreadPoolExecutor, function: Any, *args: Any) -> Any:
        done = submit(self, function, *args)
        if function is not int:
            begun.append(done)
            if len(begun) == which + 1:
                raise KeyboardInterrupt
        return done

    model = Residual().eval()

    def begin() -> None:
        with streams(model, BATCHES, layers_named(model, ["conv1"]), {}, before=False):
            pytest.fail("they cannot have begun")

    with everything_returns(model):
        monkeypatch.setattr(ThreadPoolExecutor, "submit", struck)
        assert isinstance(apart(begin), KeyboardInterrupt)
        monkeypatch.undo()
    assert len(begun) == which + 1


class Strike:
    """An interrupt before the n-th line that the calling thread runs in these files; `count` is how many it ran.

    Python looks at signals after calls. So none strikes at `try:`, nor between the end of a `with` block and its exit,
    where the line of the `with` comes once more.
    """

    FILES = frozenset(module.__file__ for module in (streams_module, threads_module, random_state, modes, contextlib))

    def __init__(self, line: int | None = None) -> None:
        self.line, self.count, self.where = line, 0, ""
        self.entered: set[tuple[FrameType, int]] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> Strike | None:
        if event == "call":
            return self if frame.f_code.co_filename in self.FILES else None
        words = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        place = (frame, frame.f_lineno)
        if event == "line" and not words.startswith("try:") and place not in self.entered:
            if words.startswith("with "):
                self.entered.add(place)
            self.count += 1
            if self.count == self.line:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self


def struck_walk(model: nn.Module, line: int | None) -> tuple[Strike, BaseException | None]:
    """Two steps of three passes side by side, with an interrupt at a line of them."""
    strike = Strike(line)

    def walk() -> None:
        sys.settrace(strike)  # of this thread alone
        try:
            with streams(model, BATCHES, layers_named(model, ["conv1", "conv2"]), {}, before=False) as running:
                for _ in range(2):
                    assert all(advance(running, 2))
        finally:
            sys.settrace(None)
            strike.entered.clear()

    return strike, apart(walk)


@pytest.fixture
def quick_collections() -> Iterator[None]:
    """What was there before is not looked at again: of a process that ran many tests a collection takes a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
def test_an_interrupt_at_every_line(quick_collections: None) -> None:
    model = Residual().eval()
    whole, error = struck_walk(model, None)
    assert error is None
    assert whole.count > 200
    struck = []
    with everything_returns(model):
        for line in range(1, whole.count + 1):
            strike, error = struck_walk(model, line)
            assert isinstance(error, KeyboardInterrupt), (strike.where, error)
            struck.append(strike.where)
            assert eventually(lambda: not random_state._Lent.borrowers, gc.collect), strike.where
    assert len(set(struck)) > 60


def test_standard_output_is_turned_aside_by_one_thread_at_a_time() -> None:
    inside, outside = threading.Event(), threading.Event()

    def second() -> None:
        with exact_module._silent_stdout():
            inside.set()
            assert outside.wait(PATIENCE)

    before, other = os.fstat(1), threading.Thread(target=second)
    with exact_module._silent_stdout():
        other.start()
        inside.wait(0.2)  # as long as it comes in beside us; it may not
    outside.set()
    other.join(PATIENCE)
    assert inside.is_set()
    assert os.fstat(1).st_ino == before.st_ino


@pytest.mark.usefixtures("quiet")
def test_an_interrupt_in_a_diagnosis_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Residual().eval()

    def struck(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPoolExecutor, "map", struck)
    with threads_of(2), everything_returns(model):
        assert isinstance(apart(lambda: diagnose(model, IMAGES)), KeyboardInterrupt)
