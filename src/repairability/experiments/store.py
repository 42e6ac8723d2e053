"""Store: a folder with one JSON record per run, written then renamed and synced."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from repairability._files import make_folder, read_sealed, read_text, write_atomically, write_sealed
from repairability._json import read_json, strict_json
from repairability.errors import InputError, PlaceError, shortened
from repairability.experiments.record import Record
from repairability.experiments.spec import plain, read_as
from repairability.experiments.study import StudyEntry
from repairability.tables import frame_of


class Store:
    """`records/ID.json`, `studies/NAME.json`, `cache/` and `locks/` below one folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, run_id: str) -> Path:
        return self.folder / "records" / f"{run_id}.json"

    def write(self, record: Record) -> None:
        _write(self.path(record.run_id), record.to_dict())

    def read(self, run_id: str) -> Record | None:
        """The record, or None where there is none; one that is damaged, or foreign, is an error that says which."""
        path = self.path(run_id)
        if not os.path.lexists(path):
            return None
        try:
            content = _read(path)
        except InputError as error:
            raise InputError(f"record {path} cannot be read: {error}") from error
        try:
            record = Record.from_dict(content)
        except InputError as error:
            raise type(error)(f"record {path} {error}") from error
        if record.run_id != run_id:
            raise InputError(f"record {path} says it is {shortened(record.run_id)}")
        return record

    def set_aside(self, run_id: str) -> Path:
        """Move a damaged record out of the way, without losing it."""
        return _set_aside(self.path(run_id))

    def read_all(self, run_ids: Sequence[str] | None = None) -> tuple[list[Record], list[str]]:
        """The whole records, and what is wrong with the damaged ones."""
        if run_ids is None:
            run_ids = sorted(file.stem for file in (self.folder / "records").glob("*.json"))
        records, problems = [], []
        for run_id in run_ids:
            try:
                record = self.read(run_id)
            except InputError as error:
                problems.append(str(error))
            else:
                records += [] if record is None else [record]
        return records, problems

    def frame(self) -> Any:
        """Every whole record as a row of a pandas frame."""
        return frame_of([record.row() for record in self.read_all()[0]])

    def write_study(self, study: StudyEntry, *, part: bool = False) -> Path | None:
        """Write or renew it; where a damaged file was moved out of the way. `part`: its runs come to those that the
        store knows of it.
        """
        path = self.folder / "studies" / f"{study.name}.json"
        aside = None
        with self.lock(f"study-{study.name}"):
            if os.path.lexists(path):
                try:
                    _study(path)
                except InputError:
                    aside = _set_aside(path)
            known = self.members(study.name) if part else ()
            _write(path, plain(replace(study, run_ids=tuple(dict.fromkeys([*known, *study.run_ids])))))
        return aside

    def studies(self) -> tuple[list[StudyEntry], list[str]]:
        """The whole studies, and what is wrong with the damaged ones."""
        entries, problems = [], []
        for file in sorted((self.folder / "studies").glob("*.json")):
            try:
                entries.append(_study(file))
            except InputError as error:
                problems.append(f"{file} is not a study of a store: {error}")
        return entries, problems

    def members(self, study: str) -> tuple[str, ...]:
        """The runs of a study, as far as the store knows it."""
        return next((entry.run_ids for entry in self.studies()[0] if entry.name == study), ())

    def lock(self, name: str) -> FileLock:
        """The lock of whoever does `name`: one process at a time, on all machines that share the folder.

        It is the kernel's, so it goes with its process however that ends; its file stays, empty.
        """
        path = self.folder / "locks" / name
        make_folder(path.parent)
        return FileLock(path)

    def claim(self, name: str) -> FileLock | None:
        """The lock, taken; None where another process has it."""
        lock = self.lock(name)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return None
        except OSError as error:
            raise PlaceError(f"cannot lock {lock.lock_file}: {error.strerror}") from error
        return lock

    def cached(self, kind: str, key: str, compute: Callable[[], bytes]) -> bytes:
        """An entry of the cache: read, or computed by one process while the others wait for it."""
        path = self.folder / "cache" / kind / key
        with self.lock(f"{kind}-{key}"):
            with suppress(FileNotFoundError, InputError):  # a damaged entry is made again
                return read_sealed(path)
            content = compute()
            make_folder(path.parent)
            write_sealed(path, content)
            return content

    def busy(self, kind: str, key: str) -> bool:
        """Whether another process computes this entry of the cache just now."""
        lock = self.claim(f"{kind}-{key}")
        if lock is not None:
            lock.release()
        return lock is None


def _study(file: Path) -> StudyEntry:
    entry = read_as(StudyEntry, _read(file))
    if entry.name != file.stem:
        raise InputError(f"it says it is {entry.name}")
    return entry


def _read(path: Path) -> Any:
    if not path.is_file():  # a pipe would keep us waiting
        raise InputError(f"{path} is not a file")
    return read_json(read_text(path))


def _write(path: Path, content: Mapping[str, Any]) -> None:
    make_folder(path.parent)
    write_atomically(path, strict_json(content, indent=1))


def _set_aside(path: Path) -> Path:
    places = (path.with_name(f"{path.name}.damaged{i or ''}") for i in range(1000))
    return path.rename(next(place for place in places if not os.path.lexists(place)))
