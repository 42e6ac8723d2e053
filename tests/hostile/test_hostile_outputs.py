"""Where things are written: into what the user named, and nowhere and nothing else."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repairability import InputError
from repairability._files import check_name, write_atomically
from repairability.experiments import RunSpec, Store
from repairability.experiments.archive import RUNS
from repairability.experiments.record import Record
from repairability.report.markup import to_latex
from repairability.tables import Table
from test_cli_images import run

NAMES = ["../x", "../../x", "/tmp/x", "a/b", "..", ".", "", "a\\b", "C:x", "a\nb", "\x1b[31m", "a\0b", "x" * 300, "a/"]
STUDY = {"title": "t", "sections": ["accuracy"], "about": "", "run_ids": ["r"], "smoke": False}
FIGURES: dict[str, Any] = {"top1": 0.5, "n": 10, "achieved": 0.9, "global_sparsity": 0.8, "dense_top1": 0.6}


def record() -> Record:
    return Record("r", RunSpec.read({"model": "digits", "data": "digits"}), "done", FIGURES)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_no_foreign_text_is_a_path(name: str) -> None:
    with pytest.raises(InputError, match="is no name"):
        check_name(name)


@pytest.mark.parametrize("name", ["small", "ours-vgg16_quarter.2", "Größe 2", "..x"])
def test_plain_names_stay(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("kind", ["store", "archive"])
@pytest.mark.parametrize("name", ["../escaped", "../../escaped", "{folder}/escaped"])
def test_a_study_does_not_say_where_its_report_goes(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    entry = {"name": name.format(folder=tmp_path), **STUDY}
    if kind == "store":
        Store(inner / "runs").write(record())
        (inner / "runs" / "studies").mkdir()
        (inner / "runs" / "studies" / "small.json").write_text(json.dumps(entry), encoding="utf-8")
    else:
        (inner / "runs").mkdir()
        lines = [json.dumps({"study": entry}), json.dumps({"record": record().content()})]
        (inner / "runs" / RUNS).write_bytes(gzip.compress("\n".join(lines).encode()))
    before = sorted(path for path in tmp_path.rglob("*") if "locks" not in path.parts)
    code, _, err = run(capsys, "report", "--store", str(inner / "runs"), "--out", str(inner / "out"), "--format", "md")
    after = [path for path in tmp_path.rglob("*") if inner / "out" not in path.parents and path != inner / "out"]
    assert sorted(after) == before
    assert "Traceback" not in err
    assert code == (0 if kind == "store" else 2)  # a damaged study blocks no other; an archive is one file
    assert kind == "store" or "is no name" in err


def test_a_label_does_not_leave_its_braces() -> None:
    assert r"\label{tab:x--input-y-}" in to_latex(Table(("a",), [("b",)]), "x}\\input{y}")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


UNFIT: list[tuple[str, Callable[[Path], object], str]] = [
    ("folder", Path.mkdir, "it is a folder, not a file"),
    ("fifo", fifo, "it is a pipe, not a file"),
    ("link to a fifo", lambda path: (fifo(path.with_name("p")), path.symlink_to("p")), "it is a pipe, not a file"),
    ("link to a device", lambda path: path.symlink_to(os.devnull), "it is a device, not a file"),
    ("link to a folder", lambda path: path.symlink_to("."), "it is a folder, not a file"),
    ("link to itself", loop, "cannot write"),
]


@pytest.mark.parametrize(("made", "message"), [case[1:] for case in UNFIT], ids=[case[0] for case in UNFIT])
def test_what_is_no_file_is_not_replaced(made: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    made(path)
    before = os.lstat(path)
    with pytest.raises(InputError, match=message):
        write_atomically(path, "new")
    after = os.lstat(path)
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)


@pytest.mark.parametrize("there", [True, False])
def test_links_are_followed(there: bool, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    target, link = tmp_path / "place" / "target.json", tmp_path / "link.json"
    if there:
        target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o400])
def test_a_file_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old", encoding="utf-8")
    path.chmod(mode)
    write_atomically(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_name_as_long_as_the_system_takes_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("x" * 250), "new")
    assert [len(name) for name in os.listdir(tmp_path)] == [250]
