from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repairability import InputError, _files
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


KILLED = """
import os, signal, sys
from repairability._files import write_atomically
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
write_atomically(sys.argv[1], "half")
"""
killed_by_signals = pytest.mark.skipif(os.name == "nt", reason="needs signals and the kernel's locks")


@killed_by_signals
def test_what_a_killed_writer_left_goes_with_the_next(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    for name in ("a.csv", "a.csv", "other.csv"):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], check=False)
    (tmp_path / ".a.csv.mine.txt").touch()
    kinds = sorted(name.partition(".csv")[0] for name in os.listdir(tmp_path))
    assert kinds == [".a", ".a", ".other"]  # what the second one found, it removed: one half file each, and ours
    write_atomically(file, "whole")
    assert read_text(file) == "whole"
    left = [name for name in os.listdir(tmp_path) if name.startswith(".a.")]
    assert left == [".a.csv.mine.txt"]
    write_atomically(tmp_path / "other.csv", "whole")
    assert sorted(os.listdir(tmp_path)) == [".a.csv.mine.txt", "a.csv", "other.csv"]


def test_what_is_being_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second writer of the same file comes while the first one writes."""
    file, sync = tmp_path / "a.csv", os.fsync

    def meanwhile(handle: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        write_atomically(file, "second")
        assert len(os.listdir(tmp_path)) == 2  # its file, and the first one's part
        sync(handle)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_atomically(file, "first")
    assert read_text(file) == "first"
    assert os.listdir(tmp_path) == ["a.csv"]


@killed_by_signals
def test_what_is_whole_and_about_to_be_renamed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, rename = tmp_path / "a.csv", os.replace

    def meanwhile(source: str, target: str) -> None:
        monkeypatch.setattr(os, "replace", rename)
        write_atomically(file, "second")
        rename(source, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    write_atomically(file, "first")
    assert read_text(file) == "first"


def test_a_part_that_is_taken_for_remains_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its lock somebody removes it."""
    lock, taken = _files._lock, []

    def too_late(handle: int) -> int | None:
        taken.extend(tmp_path.glob(".a.csv.*") if not taken else ())
        taken[0].unlink(missing_ok=True)
        return lock(handle)

    monkeypatch.setattr(_files, "_lock", too_late)
    write_atomically(tmp_path / "a.csv", "whole")
    assert len(taken) == 1
    assert os.listdir(tmp_path) == ["a.csv"]
    assert read_text(tmp_path / "a.csv") == "whole"
