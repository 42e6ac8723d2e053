"""Ctrl-C in every verb, at ten moments each, while it imports too: exit code 130, nothing half-written or left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import PATIENCE, eventually
from forked import Ended, Forks
from verbs import RUNS, check_done, check_whole, fill, silent

pytestmark = pytest.mark.slow

ALL = {**RUNS, "sweep, in processes": [*RUNS["sweep"], "--executor", "processes", "--workers", "1"]}
MOMENTS, FRESH = 8, 2
MOST = 4.0
"""Seconds: of what takes longer, the first ones are interrupted."""


def verb_of(name: str) -> str:
    return name.partition(",")[0]


def semaphores() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("sem.")}


def strike(group: int) -> None:
    """As a terminal does: the whole group is told."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGINT)


def gone(group: int) -> bool:
    """Whether no process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def check(verb: str, ended: Ended, group: int, folder: Path, before: set[str]) -> None:
    silent(ended)
    assert ended.code in (0, 130), ended.err
    assert eventually(lambda: gone(group))
    new = semaphores() - before  # some are of other processes of this machine, and go with them
    assert eventually(lambda: not new & semaphores()), new & semaphores()
    if ended.code:
        assert len(ended.err.splitlines()) == 0 or "interrupted" in ended.err, ended.err
        check_whole(folder)
    else:
        check_done(verb, folder)


@pytest.mark.parametrize("name", ALL)
def test_at_eight_moments(name: str, forks: Forks, inputs: Path, tmp_path: Path) -> None:
    """At once, and at seven that are spread over what it takes undisturbed."""
    verb, before, codes = verb_of(name), semaphores(), []
    draw, seconds = random.Random(name), MOST

    def run(called: str, wait: float, struck: bool = False) -> float:
        folder = tmp_path / called
        folder.mkdir()
        fill(inputs, folder)
        group = forks.begin([verb, *ALL[name]], folder, struck=struck)
        if not forks.ends_within(wait):
            strike(group)
        ended = forks.end()
        check(verb, ended, group, folder, before)
        codes.append(ended.code)
        return ended.seconds

    run("at once", PATIENCE, struck=True)
    assert codes == [130]
    seconds = run("undisturbed", MOST)
    for moment in range(MOMENTS - 1):
        run(str(moment), seconds * (moment + draw.random()) / (MOMENTS - 1))
    print(f"{name}: {codes.count(130)} of {len(codes)} interrupted, undisturbed {seconds:.2f} s")


BEGIN = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
signal.signal(signal.SIGINT, signal.default_int_handler)

class Begun:
    def find_spec(self, name, *_):
        if name == "repairability.cli":
            sys.meta_path.remove(self)
            os.write(1, b"begun")
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

from repairability.__main__ import main
sys.meta_path.insert(0, Begun())
main()
"""
"""The program, which says when its first import begins: before, there is Python and nothing of ours."""


def fresh(arguments: list[str], folder: Path, wait: float | None) -> tuple[Ended, int]:
    """A run of an interpreter of its own, interrupted so long after its first import began, and its group."""
    errors = folder / ".errors"
    with errors.open("w", encoding="utf-8") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", BEGIN, *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=err,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdout.read(5) == b"begun"
        begun = time.perf_counter()
        if wait is not None:
            time.sleep(wait)
            strike(process.pid)
        out = process.stdout.read()
        code = process.wait()
    said = errors.read_text(encoding="utf-8")
    errors.unlink()
    return Ended(code, out.decode(errors="replace"), said, time.perf_counter() - begun), process.pid


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds that a fresh interpreter takes for its imports, and little else."""
    ended, _ = fresh(["layers", "digits"], tmp_path_factory.mktemp("imports"), None)
    assert ended.code == 0, ended.err
    return ended.seconds


@pytest.mark.parametrize("name", ALL)
def test_while_it_imports(name: str, imports: float, inputs: Path, tmp_path: Path) -> None:
    verb, before = verb_of(name), semaphores()
    draw = random.Random(f"imports of {name}")
    for moment in range(FRESH):
        folder = tmp_path / str(moment)
        folder.mkdir()
        fill(inputs, folder)
        wait = imports * (moment + draw.random()) / FRESH
        ended, group = fresh([verb, *ALL[name]], folder, wait)
        check(verb, ended, group, folder, before)
