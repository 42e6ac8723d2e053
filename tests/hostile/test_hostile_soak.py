"""`benchmarks/soak.py`, shortened: what a process holds does not grow with what it has pruned, failures included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PRUNES = 60
"""Behind the warm-up of 35."""

GROWTH = 50
"""MB: of 65 prunings behind the warm-up memory grew by 18 to 33, of the 400 after them by none."""

PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from soak import WARM, soak
{more}
print(json.dumps([vars(level) for level in soak(WARM + int(sys.argv[2]), 20)]))
"""
LEAK = """
import soak as module
held, one = [], module.one
module.one = lambda model, *rest: (held.append(model), one(model, *rest))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="it reads /proc"),
]


@cache
def levels(more: str, prunes: int) -> list[dict[str, float]]:
    """At the start, behind the warm-up, and so on; in a process of its own."""
    program = [sys.executable, "-c", PROGRAM.format(more=more), str(BENCHMARKS), str(prunes)]
    done = subprocess.run(
        program, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, float]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("held", ["tensors", "descriptors", "threads", "python_threads"])
def test_as_many_as_behind_the_warm_up(held: str) -> None:
    _, warm, *later = levels("", PRUNES)
    assert [level[held] for level in later] == [warm[held]] * len(later)


def test_memory_is_bounded() -> None:
    _, warm, *later = levels("", PRUNES)
    assert max(level["memory_mb"] for level in later) < warm["memory_mb"] + GROWTH


def test_every_fourth_failed_on_purpose() -> None:
    last = levels("", PRUNES)[-1]
    assert last["failed"] == last["done"] // 4


def test_a_leak_would_be_seen() -> None:
    _, warm, *later = levels(LEAK, 8)
    assert later[-1]["tensors"] > warm["tensors"]
