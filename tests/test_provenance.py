from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from repairability import provenance as module
from repairability.provenance import MemoryGrowth, peak_memory, provenance


def test_it_says_what_ran_where() -> None:
    facts = provenance()
    assert {"repairability", "commit", "torch", "python", "hardware"} <= facts.keys()
    assert facts["torch"] == torch.__version__
    assert "threads" in facts["hardware"]
    assert all(isinstance(value, str) and value for value in facts.values())


def test_outside_a_checkout_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(subprocess, "run", fail)
    assert module._commit() == "none (not a checkout)"


def test_the_peak_of_memory_is_that_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = peak_memory()
    assert peak is None or 50 < peak < 1e6
    monkeypatch.setattr(module, "Path", lambda _: Path("there is no /proc here"))
    elsewhere = peak_memory()
    assert elsewhere is None or 50 < elsewhere < 1e6
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory() is None


def test_memory_that_grew_is_told_from_what_an_earlier_peak_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "peak_memory", lambda: 500.0)
    assert MemoryGrowth(now=120.0, peak=300.0).megabytes() == 380.0
    assert MemoryGrowth(now=120.0, peak=500.0).megabytes() is None  # how far it went below the peak, nobody knows
    assert MemoryGrowth(now=None, peak=300.0).megabytes() is None
    monkeypatch.setattr(module, "peak_memory", lambda: None)
    assert MemoryGrowth(now=120.0, peak=300.0).megabytes() is None
