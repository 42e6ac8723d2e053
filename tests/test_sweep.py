"""What happens to a store while it is swept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repairability.experiments import InProcess, Progress, Store, read_study
from repairability.experiments import store as store_module
from repairability.experiments.executors import Jobs, Results
from test_cli_images import run
from test_experiments import results, study_file, swept


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return study_file(tmp_path, seeds="[0]")


def after(count: int, strike: Callable[[], object]) -> Callable[[Progress], None]:
    """A watcher that strikes once, when so many runs are done."""
    struck = iter([strike])

    def watch(progress: Progress) -> None:
        if progress.done == count:
            next(struck, lambda: None)()

    return watch


def test_a_store_that_is_removed_meanwhile(file: Path, tmp_path: Path) -> None:
    """What was done before is open again, and said; the study is in the store, and the next sweep completes it."""
    folder = tmp_path / "runs"
    calm = results(swept(file, tmp_path / "calm")[0])
    store, progress = swept(file, folder, watch=after(2, lambda: shutil.rmtree(folder)))
    assert (progress.done, progress.open, progress.left) == (4, 2, 2)
    assert sum("its record is gone" in problem for problem in progress.problems) == 2
    assert store.members("small") == Store(tmp_path / "calm").members("small")
    progress = swept(file, folder)[1]
    assert (progress.known, progress.done, progress.left, progress.problems) == (4, 2, 0, [])
    assert results(store) == calm


def test_a_record_that_is_damaged_meanwhile(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no record at the end of the sweep, and the exit code says so."""
    records = tmp_path / "runs" / "records"
    write = Store.write

    def damaged(self: Store, record: Any) -> None:
        write(self, record)
        if len(list(records.iterdir())) == 3:
            self.path(record.run_id).write_text("{", encoding="utf-8")

    monkeypatch.setattr(Store, "write", damaged)
    code, out, _ = run(capsys, "sweep", str(file), "--store", str(tmp_path / "runs"))
    assert code == 1
    assert "1 left" in out
    monkeypatch.undo()
    code, out, err = run(capsys, "sweep", str(file), "--store", str(tmp_path / "runs"))
    assert (code, "5 known, 1 done now" in out) == (0, True), out
    assert "kept as" in err


def test_a_record_that_another_sweep_mends_stays(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a damaged record and what is done about it, another sweep makes it again."""
    store, _ = swept(file, tmp_path / "runs")
    whole = results(store)
    victim = store.path(min(whole))
    content = victim.read_bytes()
    victim.write_bytes(content[:-9])
    read, mended = Store.read, iter([victim])

    def mends(self: Store, run_id: str) -> Any:
        try:
            return read(self, run_id)
        finally:
            if run_id == min(whole):
                next(mended, tmp_path / "not").write_bytes(content)

    monkeypatch.setattr(Store, "read", mends)
    progress = swept(file, tmp_path / "runs")[1]
    assert (progress.known + progress.elsewhere, progress.done, progress.problems) == (6, 0, [])
    assert [path.name for path in victim.parent.iterdir() if path.suffix != ".json"] == []
    assert results(store) == whole


def test_two_sweeps_of_parts_do_not_forget_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes a study between another's reading and writing of it."""
    write, free = store_module._write, []

    def watched(path: Path, content: Any) -> None:
        free.append(Store(tmp_path).claim("study-small"))
        write(path, content)

    monkeypatch.setattr(store_module, "_write", watched)
    study, store = read_study(study_file(tmp_path)), Store(tmp_path)
    for ids in (("a", "b"), ("b", "c")):
        store.write_study(replace(study, run_ids=ids), part=True)
    assert store.members("small") == ("a", "b", "c")
    assert free == [None, None]


def test_a_run_under_two_names_is_one(tmp_path: Path) -> None:
    """Two cells with one id (files of one content) are one run of the study."""
    store = Store(tmp_path)
    store.write_study(replace(read_study(study_file(tmp_path)), run_ids=("a", "b", "a")))
    assert store.members("small") == ("a", "b")


class Refusing(InProcess):
    """An executor that must not be asked."""

    def run(self, function: Any, jobs: Jobs) -> Results:
        raise AssertionError("there is nothing to run")
        yield


def test_where_nothing_is_left_no_executor_begins(file: Path, tmp_path: Path) -> None:
    swept(file, tmp_path / "runs")
    progress = swept(file, tmp_path / "runs", executor=Refusing())[1]
    assert (progress.known, progress.left) == (6, 0)
