"""Faults that strike a sweep at moments drawn by seed: processes killed, a full disk, a jumping clock, files lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers import HERE, Warm
from faults import DAY, ROUNDS, STUDY, Round, inspect, plan, run_round

from repairability.experiments import Store
from test_experiments import results, study_file, swept

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="faults are injected on Linux")


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    process = Warm()
    yield process
    process.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed sweep gives."""
    folder = tmp_path_factory.mktemp("calm")
    return results(swept(study_file(folder, text=STUDY), folder / "runs")[0])


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Where the store lies: for a full disk a small one of its own, where the system lets us mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    wanted = "disk full" in request.node.name
    mounted = (
        wanted
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
    )
    yield folder
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("this", plan(), ids=str)
def test_a_struck_sweep_ends_as_an_undisturbed_one(
    this: Round, warm: Warm, calm: dict[str, Any], disk: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if this.executor == "ray":
        request.getfixturevalue("one_ray")
    run_round(warm, this, tmp_path, disk, calm)


def test_there_are_fifty_rounds() -> None:
    assert sum(sum(kinds.values()) for kinds in ROUNDS.values()) == len(plan()) == len(set(plan())) == 50


CLOCK = "import time; print(time.time()); print(time.time_ns())"
DISK = "import os, sys; os.fsync(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT))"


def injected(program: str, faults: Path) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "PYTHONPATH": str(HERE / "injected"), "FAULTS": str(faults)}
    command = [sys.executable, "-c", program, str(faults / "file")]
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("seconds", [DAY, -DAY])
def test_the_clock_jumps(seconds: int, tmp_path: Path) -> None:
    assert abs(float(injected(CLOCK, tmp_path).stdout.split()[0]) - time.time()) < DAY / 4
    (tmp_path / "clock").write_text(str(seconds), encoding="utf-8")
    first, second = injected(CLOCK, tmp_path).stdout.split()
    assert abs(float(first) - time.time() - seconds) < DAY / 4
    assert abs(int(second) / 1e9 - time.time() - seconds) < DAY / 4


def test_the_disk_is_full(tmp_path: Path) -> None:
    assert injected(DISK, tmp_path).returncode == 0
    (tmp_path / "full").touch()
    assert "No space left on device" in injected(DISK, tmp_path).stderr


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    swept(study_file(folder, text=STUDY), folder / "runs")
    return folder / "runs"


def first(store: Path) -> Path:
    return min((store / "records").iterdir())


HARM: dict[str, Callable[[Path], object]] = {
    "a record is lost": lambda store: first(store).unlink(),
    "a record is damaged": lambda store: first(store).write_text("{", encoding="utf-8"),
    "a record is made again": lambda store: first(store).write_bytes(first(store).read_bytes() + b" "),
    "a record too many": lambda store: shutil.copy(first(store), first(store).with_suffix(".again")),
    "a study is lost": lambda store: shutil.rmtree(store / "studies"),
    "a half file": lambda store: (store / "cache" / ".x.part").touch(),
    "a damaged cache": lambda store: min((store / "cache" / "curves").iterdir()).write_bytes(b"x" * 40),
    "a lock that is held": lambda store: Store(store).claim("x"),
}


@pytest.mark.parametrize("harm", HARM)
def test_the_inspection_sees(harm: str, stores: Path, tmp_path: Path) -> None:
    calm = results(Store(stores))
    shutil.copytree(stores, tmp_path / "runs")
    kept = {file: file.read_bytes() for file in (tmp_path / "runs" / "records").iterdir()}
    inspect(tmp_path / "runs", calm, kept)
    held = HARM[harm](tmp_path / "runs")
    with pytest.raises((AssertionError, ValueError, OSError)):
        inspect(tmp_path / "runs", calm, kept)
    del held
