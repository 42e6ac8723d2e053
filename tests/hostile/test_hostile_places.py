"""A full disk, a device that is not there, a worker that dies: errors of the place, and no results."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch

from repairability import InputError
from repairability.errors import MissingExtraError, PlaceError, of_the_place
from repairability.experiments import run as run_module
from repairability.experiments.executors import Jobs, Results
from repairability.experiments.sweep import IN_A_ROW
from test_cli_images import run
from test_experiments import study_file, swept

FULL = OSError(errno.ENOSPC, "No space left on device")


def caused(cause: BaseException) -> InputError:
    error = InputError("ours")
    error.__cause__ = cause
    return error


PLACE: list[BaseException] = [
    FULL,
    caused(FULL),
    caused(caused(PermissionError(errno.EACCES, "Permission denied"))),
    PlaceError("cannot write x"),
    MissingExtraError("ray", "ray"),
    MemoryError(),
    URLError("no network"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 10 bytes"),
    RuntimeError("CUDA error: device lost"),
    torch.OutOfMemoryError("CUDA out of memory."),
]
SPEC: list[BaseException] = [
    InputError("no such layer"),
    ValueError("a"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    caused(OSError("image file is truncated")),  # PIL's, of the content
    KeyError("x"),
]


@pytest.mark.parametrize("error", PLACE, ids=repr)
def test_of_the_place(error: BaseException) -> None:
    assert of_the_place(error)


@pytest.mark.parametrize("error", SPEC, ids=repr)
def test_of_the_spec(error: BaseException) -> None:
    assert not of_the_place(error)


@pytest.mark.parametrize("error", PLACE, ids=repr)
def test_such_a_run_stays_open_and_runs_later(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, task = study_file(tmp_path, seeds="[0]"), run_module._TASKS["prune"]
    struck = iter([True])

    def once(shared: Any) -> dict[str, Any]:
        if next(struck, False):
            raise error
        return task(shared)

    monkeypatch.setitem(run_module._TASKS, "prune", once)
    store, progress = swept(file, tmp_path / "runs")
    assert (progress.done, progress.failed, progress.open, progress.left) == (5, 0, 1, 1)
    assert [record.status for record in store.read_all()[0]] == ["done"] * 5
    assert "stays open: " in progress.problems[0]
    assert type(error).__name__ in progress.problems[0]
    assert swept(file, tmp_path / "runs")[1].done == 1


def test_a_place_that_fails_all_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(shared: Any) -> dict[str, Any]:
        raise FULL

    monkeypatch.setitem(run_module._TASKS, "prune", full)
    store, progress = swept(study_file(tmp_path), tmp_path / "runs")
    assert (progress.open, progress.left) == (IN_A_ROW, 12)
    assert "stopped: 3 runs" in progress.problems[-1]
    assert not store.read_all()[0]


def test_a_full_disk_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from repairability.experiments import store as store_module

    def full(*_: Any) -> None:
        raise PlaceError("cannot write x") from FULL

    monkeypatch.setattr(store_module, "write_sealed", full)
    store, progress = swept(study_file(tmp_path, seeds="[0]"), tmp_path / "runs")
    assert (progress.failed, progress.done) == (0, 0)
    assert not store.read_all()[0]


@pytest.mark.parametrize("device", ["cuda:77", "banana", "meta", ""])
def test_a_device_that_is_not_there(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, runs = str(study_file(tmp_path, seeds="[0]")), tmp_path / "runs"
    code, _, err = run(capsys, "sweep", file, "--store", str(runs), "--device", device)
    assert (code, "is not available here" in err) == (2, True), err
    assert not runs.exists()


def test_a_worker_without_the_device(tmp_path: Path) -> None:
    """Of a cluster's machines: the driver does not know what they have."""
    job = {"run_id": "x", "spec": {"model": "networks:small_net", "data": "random:10"}, "weights": None}
    outcome = run_module.run_job({**job, "data": "random:10", "device": "cuda:77"})
    assert isinstance(outcome, str)
    assert "PlaceError: device 'cuda:77'" in outcome


class Dying:
    """An executor whose first worker dies too often."""

    def run(self, function: Any, jobs: Jobs) -> Results:
        for i, job in enumerate(jobs):
            assert job is not None
            yield job, function(job) if i else "the worker died, 3 times (-9)"


def test_a_dying_job_is_named_and_no_result(tmp_path: Path) -> None:
    store, progress = swept(study_file(tmp_path, seeds="[0]"), tmp_path / "runs", executor=Dying())
    assert (progress.done, progress.failed, progress.open) == (5, 0, 1)
    assert len(store.read_all()[0]) == 5
    assert "the worker died" in progress.problems[0]


def test_a_store_that_cannot_be_locked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "locks").write_text("a file in the place of the folder", encoding="utf-8")
    code, _, err = run(capsys, "sweep", str(study_file(tmp_path)), "--store", str(tmp_path / "runs"))
    assert (code, "Traceback" in err) == (2, False), err
