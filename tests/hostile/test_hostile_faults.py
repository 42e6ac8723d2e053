"""Faults that strike a sweep at moments drawn by seed: processes killed, a full disk, a clock that jumps, files lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults import DAY, HERE, ROUNDS, RUNS, STUDY, Round, Warm, inspect, plan, run_round
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
    mounted = wanted and not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    ).returncode
    yield folder
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("this", plan(), ids=str)
def test_a_struck_sweep_ends_as_an_undisturbed_one(
    this: Round, warm: Warm, calm: dict[str, Any], disk: Path, tmp_path: Path
) -> None:
    if this.executor == "ray":
        pytest.importorskip("ray", reason="needs the extra 'ray'")
    run_round(warm, this, tmp_path, disk, calm)


def test_there_are_fifty_rounds() -> None:
    assert sum(sum(kinds.values()) for kinds in ROUNDS.values()) == len(plan()) == len(set(plan())) == 50
