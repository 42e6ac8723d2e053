from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from repairability import InputError
from repairability._files import make_folder, read_sealed, read_text, write_atomically, write_sealed


def test_writes_and_replaces(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    write_atomically(file, "one")
    write_atomically(file, b"two")
    assert read_text(file) == "two"
    assert os.listdir(tmp_path) == ["a.csv"]


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    fault: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.csv"
    write_atomically(file, "old")

    def fail(descriptor: int) -> None:
        raise fault

    monkeypatch.setattr(os, "fsync", fail)
    expected = InputError if isinstance(fault, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        write_atomically(file, "new")
    assert read_text(file) == "old"
    assert os.listdir(tmp_path) == ["a.csv"]


def test_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write .*No such file or directory"):
        write_atomically(tmp_path / "no" / "a.csv", "x")
    with pytest.raises(InputError, match="cannot read .*No such file or directory"):
        read_text(tmp_path / "no.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        read_text(tmp_path / "binary")


def test_a_seal_shows_damage(tmp_path: Path) -> None:
    file = tmp_path / "entry"
    write_sealed(file, b"content")
    assert read_sealed(file) == b"content"
    sealed = file.read_bytes()
    for damaged in (sealed[:-1], sealed[:10], b"", sealed.replace(b"cont", b"Cont")):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match="entry is damaged"):
            read_sealed(file)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(InputError, match="cannot make the folder .*file/below: "):
        make_folder(tmp_path / "file" / "below")
