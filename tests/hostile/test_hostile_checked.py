"""Where a result cannot be written, that is said before the work: one sentence, exit code 2, nothing loaded or made."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest
import torch

import repairability as rp
from repairability import InputError, _files, cli, create_model, prune
from repairability._files import check_file, check_folder
from repairability.cli import VERBS
from repairability.cli.options import DataSource
from repairability.errors import PlaceError
from test_cli_images import run

DIGITS = ("digits", "--data", "digits")
FILES: dict[str, tuple[str, ...]] = {
    "doctor": (*DIGITS, "--out", "{}.json"),
    "allocate": ("digits", "-s", "0.9", "--csv", "{}.csv"),
    "diagnose": (*DIGITS, "--out", "{}.json"),
    "prune": (*DIGITS, "-s", "0.9", "--out", "{}.safetensors"),
    "detect": (*DIGITS, "--out", "{}.json"),
    "evaluate": (*DIGITS, "--out", "{}.json"),
    "finetune": (*DIGITS, "--from-scratch", "--out", "{}.safetensors"),
    "compress": ("p.safetensors", "--out", "{}.safetensors"),
    "export": (*DIGITS, "--out", "{}.onnx"),
    "accelerate": ("digits", "--out", "{}.json"),
    "renew": ("{}.md", "--store", "runs"),
}
FOLDERS: dict[str, tuple[str, ...]] = {
    "report": ("record.json", "--out", "{}", "--format", "md"),
    "demo": ("--out", "{}"),
    "archive": ("--store", "runs", "--out", "{}"),
    "sweep": ("s.toml", "--store", "{}"),
}


class Unfit(NamedTuple):
    """What is there instead of a place for a file: its stem, how it is made, what is said of it."""

    stem: str
    make: Callable[[Path], object]
    message: str


def nothing(path: Path) -> None:
    pass


UNFIT = {
    "no folder": Unfit("no/such/out", nothing, "there is no folder no/such"),
    "a folder": Unfit("out", Path.mkdir, "it is a folder, not a file"),
    "below a file": Unfit("taken/out", nothing, "Not a directory"),
    "not to be written": Unfit("/proc/out", nothing, "cannot write"),
    "a pipe": Unfit("out", os.mkfifo, "it is a pipe, not a file"),
    "a name too long": Unfit("x" * 300, nothing, "File name too long"),
}
NO_FOLDER = {
    "a file": ("taken", "Not a directory"),
    "below a file": ("taken/a/b", "Not a directory"),
    "not to be written": ("/proc/a/b", "cannot write"),
    "a name too long": ("x" * 300, "File name too long"),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which every beginning of work is a failure."""

    def begun(*_: Any, **__: Any) -> Any:
        pytest.fail("the work was begun")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rp, "create_model", begun)
    monkeypatch.setattr(DataSource, "read", begun)
    for name in ("checkpoints.read_content", "demo.run_demo", "experiments.archive.read_studies"):
        monkeypatch.setattr(f"repairability.{name}", begun)
    for name in ("experiments.read_study", "experiments.archive.write_archive", "report.ReportData.from_json"):
        monkeypatch.setattr(f"repairability.{name}", begun)
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], place: Path, *command: str) -> str:
    before = sorted(place.rglob("*"))
    code, out, err = run(capsys, *command)
    assert (code, out) == (2, ""), err
    assert len(err.splitlines()) == 1
    assert err.startswith("error: cannot ")
    assert sorted(place.rglob("*")) == before
    return err


@pytest.mark.parametrize("kind", UNFIT)
@pytest.mark.parametrize("verb", FILES)
def test_a_file(verb: str, kind: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unfit = UNFIT[kind]
    arguments = [argument.format(unfit.stem) for argument in FILES[verb]]
    named = next(argument for argument in arguments if argument.startswith(f"{unfit.stem}."))
    unfit.make(Path(named))
    err = refused(capsys, place, verb, *arguments)
    assert unfit.message in err
    assert named in err


@pytest.mark.parametrize("kind", NO_FOLDER)
@pytest.mark.parametrize("verb", FOLDERS)
def test_a_folder(verb: str, kind: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stem, message = NO_FOLDER[kind]
    assert message in refused(capsys, place, verb, *(argument.format(stem) for argument in FOLDERS[verb]))


@pytest.mark.parametrize(
    ("verb", "taken"),
    [("demo", "out/demo.json"), ("demo", "out/demo.html"), ("archive", "out/runs.jsonl.gz")],
)
def test_a_folder_in_the_place_of_a_file_of_it(
    verb: str, taken: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(taken).mkdir(parents=True)
    assert "it is a folder, not a file" in refused(capsys, place, verb, *(x.format("out") for x in FOLDERS[verb]))


@pytest.mark.parametrize("out", ["page.html", "deep/page.html"])
@pytest.mark.parametrize("command", [("report", "record.json"), ("report", "--store", "runs"), ("detect", *DIGITS)])
def test_a_page(out: str, command: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(out).mkdir(parents=True)
    assert "it is a folder, not a file" in refused(capsys, place, *command, "--out", out)


@pytest.mark.parametrize("beside", ["net.json", "net.safetensors.partial"])
def test_what_finetune_writes_beside(beside: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(beside).mkdir()
    err = refused(capsys, place, "finetune", *DIGITS, "--from-scratch", "--out", "net.safetensors")
    assert f"cannot write {beside}: it is a folder" in err


FULL = [
    ("prune", *DIGITS, "-s", "0.9", "--out", "out.safetensors"),
    ("export", *DIGITS, "--out", "out.onnx"),
    ("finetune", *DIGITS, "--from-scratch", "--out", "out.safetensors"),
    ("compress", "p.safetensors", "--format", "dense", "--out", "out.safetensors"),
]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("command", FULL, ids=lambda command: command[0])
def test_no_room(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as the network is known, and before anything is done with it."""

    def begun(*_: Any, **__: Any) -> Any:
        pytest.fail("the work was begun")

    monkeypatch.chdir(tmp_path)
    prune(create_model("digits"), torch.randn(40, 1, 16, 16), sparsity=0.9, recipe="fast").save("p.safetensors")
    monkeypatch.setattr(_files.shutil, "disk_usage", lambda _: _files.shutil._ntuple_diskusage(10**6, 10**6, 1000))
    for name in ("prune", "export_onnx", "CalibrationSet"):
        monkeypatch.setattr(rp, name, begun)
    monkeypatch.setattr("repairability.training.finetune", begun)
    code, out, err = run(capsys, *command)
    assert (code, out) == (2, "")
    assert "bytes, and 1,000 are free there" in err
    assert os.listdir(tmp_path) == ["p.safetensors"]


def test_every_output_of_every_verb_is_here() -> None:
    outputs = {"out", "csv"}
    for name in VERBS:
        verb = inspect.unwrap(inspect.getmodule(getattr(cli, name)).verb)  # type: ignore[union-attr]
        written = [x for x, hint in get_type_hints(verb).items() if x in outputs and "Path" in str(hint)]
        assert bool(written) == (name in {*FILES, *FOLDERS} - {"renew", "sweep"}), name


def test_the_library_says_whose_fault_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_file(None)
    check_file(tmp_path / "new")
    check_folder(tmp_path / "a" / "b", "file")
    assert os.listdir(tmp_path) == []
    with pytest.raises(InputError, match="there is no folder"):
        check_file(tmp_path / "no" / "new")

    def full(**_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(_files.tempfile, "TemporaryFile", full)
    for check in (check_file, check_folder):
        with pytest.raises(PlaceError, match="Read-only file system"):
            check(tmp_path / "new")
