"""Records, studies and archives that somebody edited, broke, or wrote with another version: one never blocks others."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repairability import InputError
from repairability.experiments import Files, Record, RunSpec, Store, StudyEntry, read_study, sweep
from repairability.experiments import archive as archive_module
from repairability.experiments import store as store_module
from repairability.experiments.archive import RUNS, read_archive, read_studies, write_archive
from repairability.experiments.record import RECORD_VERSION, ForeignRecordError, _digest
from repairability.report.store import write_store_report
from test_cli_images import run
from test_experiments import study_file
from test_report_studies import detected
from test_report_studies import run as good_run

ABOUT = {"title": "t", "sections": ["accuracy"], "about": "", "smoke": False}


def sealed(content: dict[str, Any]) -> str:
    """With the digest that fits, as somebody may make it."""
    fields = {key: value for key, value in content.items() if key != "digest"}
    return json.dumps({**fields, "digest": _digest(fields)})


def store_of(folder: Path, *records: Record) -> Store:
    store = Store(folder)
    for record in records:
        store.write(record)
    store.write_study(StudyEntry("s", "t", ("accuracy", "settings", "detectors"), "", tuple(r.run_id for r in records)))
    return store


Text = Callable[[str], str | bytes]


def set_to(*path: str, value: Any) -> Text:
    """The record with something else at this place, and a digest that fits it."""

    def text(whole: str) -> str:
        content = json.loads(whole)
        place = content
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        return sealed(content)

    return text


def nested(text: str) -> str:
    return text.replace('"error": ""', f'"error": {"[" * 90}{"]" * 90}')


DAMAGED: dict[str, Text] = {
    "empty": lambda text: "",
    "half": lambda text: text[: len(text) // 2],
    "zeros": lambda text: bytes(len(text)),
    "not text": lambda text: bytes(range(256)),
    "100,000 brackets": lambda text: "[" * 100_000,
    "100,000 brackets and their ends": lambda text: "[" * 100_000 + "]" * 100_000,
    "nested within": nested,
    "a number": lambda text: "7",
    "null": lambda text: "null",
    "a list": lambda text: f"[{text}]",
    "nothing in it": lambda text: sealed({}),
    "edited": lambda text: text.replace('"top1": 0.', '"top1": 0.9'),
    "its digest edited": lambda text: text.replace('"digest": "', '"digest": "0'),
    "no digest": lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "digest"}),
    "a key twice": lambda text: text.replace('"status": "done"', '"status": "failed", "status": "done"'),
    "a huge number": lambda text: text.replace('"n": 10000', f'"n": {"9" * 5000}'),
    "half of a character": lambda text: text.replace('"error": ""', '"error": "\\ud800"'),
    "of another run": set_to("run_id", value="other"),
}
FOREIGN: dict[str, Text] = {
    "a later version": set_to("record_version", value=RECORD_VERSION + 1),
    "a later version of another make": lambda text: json.dumps(
        {"record_version": 99, "run_id": "x", "spec": "?", "status": "splendid", "digest": "another kind"}
    ),
    "a setting of later": set_to("spec", "temperature", value=0.5),
    "a task of later": set_to("spec", "task", value="distil"),
    "an unsorted grid": set_to("spec", "grid", value=[0.9, 0.8]),
    "an option that is refused by now": set_to("spec", "options", value={"flor": 0.1}),
    "a rule that is gone": set_to("spec", "rule", value="gone"),
    "a status of later": set_to("status", value="paused"),
    "no figures": set_to("result", value={}),
    "figures of text": set_to("result", "top1", value="0.5"),
    "an accuracy of 50": set_to("result", "top1", value=50.0),
    "no images": set_to("result", "n", value=0),
    "an agreement of text": set_to("result", "agreement", value="much"),
    "projections of numbers": set_to("result", "projections", value=[1]),
    "seconds of text": set_to("provenance", "seconds", value={"load": "long"}),
    "seconds that are none": set_to("provenance", "seconds", value=3),
    "memory of text": set_to("provenance", "peak_memory_mb", value="much"),
}
FORMATS = ["md", "csv", "latex"]


PAGES = ("half", "a key twice", "a later version", "figures of text")
"""Whose page is made too, which takes longer than the other formats together."""


def broken_store(folder: Path, text: Text) -> tuple[Store, Path]:
    """Three whole records, and one more that is not."""
    records = [*(good_run(0.1, rule=rule, seed=0) for rule in ("rr", "erk", "lamp")), good_run(0.2, rule="uniform")]
    store = store_of(folder, *records)
    file = store.path(records[-1].run_id)
    made = text(file.read_text(encoding="utf-8"))
    file.write_bytes(made if isinstance(made, bytes) else made.encode())
    return store, file


@pytest.mark.parametrize("harm", [*DAMAGED, *FOREIGN])
def test_one_bad_record_blocks_no_report(harm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, file = broken_store(tmp_path / "runs", {**DAMAGED, **FOREIGN}[harm])
    before = file.read_bytes()
    records, problems = store.read_all()
    assert (len(records), len(problems)) == (3, 1)
    assert problems[0].startswith(f"record {file} ")
    assert len(problems[0]) < 600
    assert "\n" not in problems[0]
    written = write_store_report(*read_studies(store.folder), tmp_path / "out", FORMATS)
    assert len(written) > 4
    page = ["report", "--out", str(tmp_path / "p.html")]
    for verb in (["list"], ["report", "--study", "s"], *([page] if harm in PAGES else [])):
        code, _, err = run(capsys, *verb, "--store", str(store.folder))
        assert (code, "Traceback" in err) == (0, False), err
    assert file.read_bytes() == before  # a reader changes nothing


def test_a_record_that_is_no_file(tmp_path: Path) -> None:
    store = store_of(tmp_path, good_run(0.1, rule="rr"))
    store.path("folder").mkdir()
    os.mkfifo(store.path("pipe"))
    store.path("link").symlink_to("nowhere")
    records, problems = store.read_all()
    assert (len(records), len(problems)) == (1, 3)
    assert all("is not a file" in problem for problem in problems)


@pytest.fixture(scope="module")
def swept_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A study of six runs, swept."""
    folder = tmp_path_factory.mktemp("swept")
    file = study_file(folder, seeds="[0]")
    study = read_study(file)
    jobs = Files().jobs(study.specs, folder / "runs")
    assert sweep(study, jobs, Store(folder / "runs")).done == 6
    return file, folder / "runs"


@pytest.fixture
def again(swept_store: tuple[Path, Path], tmp_path: Path) -> tuple[Any, list[Any], Store]:
    """A copy of it."""
    import shutil

    file, runs = swept_store
    shutil.copytree(runs, tmp_path / "runs")
    study = read_study(file)
    return study, Files().jobs(study.specs, tmp_path / "runs"), Store(tmp_path / "runs")


@pytest.mark.parametrize("harm", FOREIGN)
def test_a_foreign_record_is_left_alone(harm: str, again: tuple[Any, list[Any], Store]) -> None:
    study, jobs, store = again
    file = store.path(jobs[2].run_id)
    made = FOREIGN[harm](file.read_text(encoding="utf-8"))
    assert isinstance(made, str)
    file.write_text(made, encoding="utf-8")
    with pytest.raises(ForeignRecordError, match="left alone; remove it to have its run again"):
        store.read(jobs[2].run_id)
    for retry_failed in (False, True):
        progress = sweep(study, jobs, store, retry_failed=retry_failed)
        assert (progress.known, progress.foreign, progress.done, progress.left) == (5, 1, 0, 0)
        assert len(progress.problems) == 1
        assert file.read_text(encoding="utf-8") == made
    assert len(list(file.parent.iterdir())) == 6
    file.unlink()
    assert sweep(study, jobs, store).done == 1


@pytest.mark.parametrize("harm", ["half", "100,000 brackets", "edited", "a key twice", "nothing in it"])
def test_a_damaged_record_is_kept_and_made_again(harm: str, again: tuple[Any, list[Any], Store]) -> None:
    study, jobs, store = again
    file = store.path(jobs[2].run_id)
    whole = store.read(jobs[2].run_id)
    made = DAMAGED[harm](file.read_text(encoding="utf-8"))
    file.write_text(str(made), encoding="utf-8")
    progress = sweep(study, jobs, store)
    assert (progress.known, progress.done, progress.foreign) == (5, 1, 0)
    assert file.with_name(f"{file.name}.damaged").read_text(encoding="utf-8") == made
    record = store.read(jobs[2].run_id)
    assert record is not None
    assert whole is not None
    assert record.result == whole.result


def test_a_record_that_cannot_be_looked_at_just_now(
    again: tuple[Any, list[Any], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place fails, not the record: it is neither moved nor made again."""
    study, jobs, store = again
    file, read = store.path(jobs[2].run_id), store_module.read_text

    def refused(path: Path) -> str:
        if path == file:
            raise InputError(f"cannot read {path}: Permission denied") from PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(store_module, "read_text", refused)
    progress = sweep(study, jobs, store)
    assert (progress.known, progress.open, progress.done, progress.left) == (5, 1, 0, 1)
    assert "stays open" in progress.problems[0]
    monkeypatch.undo()
    assert sweep(study, jobs, store).known == 6


def test_what_is_foreign_is_said_once_and_shown(
    again: tuple[Any, list[Any], Store], swept_store: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, jobs, store = again
    file = store.path(jobs[0].run_id)
    text = FOREIGN["a later version"](file.read_text(encoding="utf-8"))
    file.write_text(str(text), encoding="utf-8")
    command = ("sweep", str(swept_store[0]), "--store", str(store.folder))
    code, out, _ = run(capsys, *command, "--dry-run", "--json")
    states = [cell["status"] for cell in json.loads(out)["cells"]]
    assert (code, states.count("not understood, left alone"), states.count("to run")) == (0, 1, 0)
    code, out, err = run(capsys, *command, "--json")
    told = json.loads(out)
    assert (code, told["foreign"], told["known"], told["left"]) == (0, 1, 5, 0), err
    assert len(told["problems"]) == 1


def test_records_are_marked_with_their_version(tmp_path: Path) -> None:
    store = store_of(tmp_path, record := good_run(0.1, rule="rr"))
    content = json.loads(store.path(record.run_id).read_text(encoding="utf-8"))
    assert content["record_version"] == RECORD_VERSION
    del content["record_version"]  # as those of earlier versions are
    store.path(record.run_id).write_text(sealed(content), encoding="utf-8")
    assert store.read(record.run_id) == record


TRANSITIONS: dict[str, Text] = {
    "no scores": set_to("result", "transition", "series", value={}),
    "fewer scores than sparsities": set_to("result", "transition", "series", "T", value=[0.1]),
    "scores of text": set_to("result", "transition", "series", "T", value=["high"] * 5),
    "a core of one": set_to("result", "transition", "core", value=[0.9]),
    "sparsities beyond 1": set_to("result", "transition", "sparsities", value=[0.9, 0.92, 0.94, 0.96, 95]),
    "nothing": set_to("result", "transition", value=None),
    "a method nobody knows": set_to("result", "transition", "method", value="magic"),
    "a null of text": set_to("result", "transition", "null", value={"shuffled": "?"}),
    "collapse of text": set_to("result", "transition", "collapse", value="soon"),
}


@pytest.mark.parametrize("harm", TRANSITIONS)
def test_one_bad_detection_blocks_no_report(harm: str, tmp_path: Path) -> None:
    whole, other = (detected((0.95, 0.955), None, seed=seed) for seed in (0, 1))
    store = store_of(tmp_path / "runs", whole, other)
    file = store.path(other.run_id)
    file.write_text(str(TRANSITIONS[harm](file.read_text(encoding="utf-8"))), encoding="utf-8")
    studies, problems = read_studies(store.folder)
    assert len(problems) == 1
    assert write_store_report(studies, problems, tmp_path / "out", FORMATS)


# --- studies of a store -----------------------------------------------------------------------------------------------

STUDIES: dict[str, Text] = {
    "empty": lambda text: "",
    "brackets": lambda text: "[" * 100_000,
    "a number": lambda text: "3",
    "no runs": lambda text: text.replace('"run_ids"', '"ids"'),
    "a name twice": lambda text: text.replace('"name"', '"name": "s", "name"', 1),
    "another's name": lambda text: text.replace('"name": "bad"', '"name": "good"'),
    "runs of numbers": lambda text: text.replace('"run_ids": [', '"run_ids": [3, '),
    "a path for a run": lambda text: text.replace('"run_ids": [', '"run_ids": ["../../x", '),
    "a section nobody knows": lambda text: text.replace('"accuracy"', '"acuracy"'),
    "a section that is no module": lambda text: text.replace('"accuracy"', '"no_such_module:section"'),
    "not text": lambda text: bytes(range(256)),
}


@pytest.mark.parametrize("harm", STUDIES)
def test_one_bad_study_blocks_no_report(harm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = good_run(0.1, rule="rr")
    store = store_of(tmp_path / "runs", record)
    for name in ("good", "bad"):
        store.write_study(StudyEntry(name, name, ("accuracy",), "", (record.run_id,)))
    file = store.folder / "studies" / "bad.json"
    made = STUDIES[harm](file.read_text(encoding="utf-8"))
    file.write_bytes(made if isinstance(made, bytes) else made.encode())
    code, out, err = run(capsys, "report", "--store", str(store.folder), "--study", "good")
    assert (code, "Traceback" in err) == (0, False), err
    assert "ResNet18" in out
    out_folder = tmp_path / "out"
    code, _, err = run(capsys, "report", "--store", str(store.folder), "--out", str(out_folder), "--format", "md,html")
    assert (code, "Traceback" in err) == (0, False), err
    assert (out_folder / "good.md").is_file()
    assert not (out_folder / "bad.md").exists()
    assert "bad" in (out_folder / "report.html").read_text(encoding="utf-8")


def test_a_damaged_study_is_kept_when_it_is_swept(again: tuple[Any, list[Any], Store]) -> None:
    study, jobs, store = again
    file = store.folder / "studies" / f"{study.name}.json"
    file.write_text("[" * 100_000, encoding="utf-8")
    progress = sweep(study, jobs, store)
    assert (progress.known, len(progress.problems)) == (6, 1)
    assert file.with_name(f"{file.name}.damaged").read_text(encoding="utf-8") == "[" * 100_000
    assert len(store.members(study.name)) == 6
    assert not sweep(study, jobs, store).problems


# --- archives ---------------------------------------------------------------------------------------------------------

Lines = Callable[[list[str]], list[str] | bytes]
ARCHIVES: list[tuple[str, Lines, str]] = [
    ("empty", lambda lines: b"", "is damaged: "),
    ("not gzip", lambda lines: b"noise", "is damaged: "),
    ("no lines", lambda lines: [], "it holds no run"),
    ("brackets", lambda lines: [*lines, "[" * 100_000], "nested more than 64 deep"),
    ("a number", lambda lines: [*lines, "7"], "is damaged: "),
    ("a list", lambda lines: [*lines, "[]"], "is damaged: "),
    ("a record twice", lambda lines: [*lines, lines[-1]], "comes twice"),
    ("a study twice", lambda lines: [lines[0], *lines], "'s' comes twice"),
    ("a key twice", lambda lines: [*lines[:-1], lines[-1].replace('"top1"', '"n":1,"top1"')], "says 'n' twice"),
    ("figures of text", lambda lines: [*lines[:-1], lines[-1].replace('"top1":0.1', '"top1":"?"')], "top1: "),
    ("a record of nothing", lambda lines: [*lines, '{"record":{}}'], "is damaged: "),
    (
        "a name that is a path",
        lambda lines: [lines[0].replace('"name":"s"', '"name":"../s"'), *lines[1:]],
        "is no name",
    ),
    ("not UTF-8", lambda lines: gzip.compress(b'{"record": "\xff"}'), "is damaged: "),
    ("nan", lambda lines: [*lines[:-1], lines[-1].replace('"n":10000', '"n":NaN')], "is damaged: n"),
]


@pytest.mark.parametrize(("harm", "message"), [(x[1], x[2]) for x in ARCHIVES], ids=[x[0] for x in ARCHIVES])
def test_an_archive_is_whole_or_refused(
    harm: Lines, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = write_archive(store_of(tmp_path / "runs", good_run(0.1, rule="rr")), tmp_path / "kept")
    made = harm(gzip.decompress(file.read_bytes()).decode().splitlines())
    file.write_bytes(made if isinstance(made, bytes) else gzip.compress("\n".join(made).encode()))
    with pytest.raises(InputError, match=message) as caught:
        read_archive(tmp_path / "kept")
    assert len(str(caught.value)) < 700
    for verb in (["list"], ["report", "--out", str(tmp_path / "p.html")]):
        code, out, err = run(capsys, *verb, "--store", str(tmp_path / "kept"))
        assert (code, out, "Traceback" in err) == (2, "", False), err


def test_an_archive_that_inflates_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "LONGEST", 10_000)
    (tmp_path / RUNS).write_bytes(gzip.compress(b" " * 10_000_000))
    with pytest.raises(InputError, match="its lines are longer than 10,000 bytes"):
        read_archive(tmp_path)


def test_a_store_with_foreign_records_is_not_archived_without_them(tmp_path: Path) -> None:
    """An archive leaves nothing out."""
    store, file = broken_store(tmp_path / "runs", FOREIGN["a later version"])
    with pytest.raises(InputError, match=f"cannot be archived.*{file.name} is of a later version"):
        write_archive(store, tmp_path / "kept")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_options_are_numbers_that_json_has(value: float) -> None:
    with pytest.raises(InputError):
        RunSpec.read({"model": "digits", "data": "digits", "rule": "erk", "options": {"floor": value}})


def test_options_are_as_deep_as_a_record_may_be() -> None:
    deep: Any = 1
    for _ in range(80):
        deep = [deep]
    with pytest.raises(InputError, match="options must be plain and finite"):
        RunSpec.read({"model": "digits", "data": "digits", "rule": "forced", "options": {"pinned": deep}})
