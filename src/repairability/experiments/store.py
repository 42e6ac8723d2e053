"""Store: a folder with one JSON record per run, written then renamed and synced."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic.dataclasses import dataclass

from repairability._files import make_folder, read_sealed, write_atomically, write_sealed
from repairability.errors import InputError, PlaceError
from repairability.experiments.spec import RunSpec, plain, read_as
from repairability.experiments.study import StudyEntry
from repairability.tables import frame_of


@dataclass(frozen=True)
class Record:
    """What one run gave: its result, or the error it failed with, and where and when it came about.

    result of task "prune": achieved, global_sparsity, top1, top5, loss, n, dense_top1, dense_bn_top1, allocation and
    totals (by layer), n_all, projections, fingerprint, objective (J or None), agreement (a dict or None).
    result of task "detect": transition (Transition.to_dict()), fingerprint.
    provenance: commit, versions, hardware, weights and data (hashes of what was loaded), host, seconds (by stage),
    peak_memory_mb.
    """

    run_id: str
    spec: RunSpec
    status: str  # "done" or "failed"
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Every field as plain objects."""
        return {**self.__dict__, "spec": self.spec.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """The content with a digest of it, so that an edited record is noticed."""
        return {**self.content(), "digest": _digest(self.content())}

    @classmethod
    def from_dict(cls, content: Any) -> Record:
        if not isinstance(content, dict) or "digest" not in content:
            raise InputError("is not a whole record: it has no digest")
        fields = {key: value for key, value in content.items() if key != "digest"}
        if content["digest"] != _digest(fields):
            raise InputError("was edited: its digest does not fit its content")
        return read_as(cls, fields)

    def row(self) -> dict[str, Any]:
        """One flat row: the spec's settings, then the plain figures of the result."""
        figures = {k: v for k, v in self.result.items() if v is None or isinstance(v, (int, float, str, bool))}
        return {
            "run_id": self.run_id,
            "status": self.status,
            **self.spec.to_dict(),
            **figures,
            "seconds": sum(self.provenance.get("seconds", {}).values()),
            "commit": self.provenance.get("commit", ""),
            "hardware": self.provenance.get("hardware", ""),
            "error": self.error,
        }


class Store:
    """`records/ID.json`, `studies/NAME.json`, `cache/` and `locks/` below one folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, run_id: str) -> Path:
        return self.folder / "records" / f"{run_id}.json"

    def write(self, record: Record) -> None:
        _write(self.path(record.run_id), record.to_dict())

    def read(self, run_id: str) -> Record | None:
        """The record, or None where there is none; a damaged one is an error."""
        path = self.path(run_id)
        try:
            record = Record.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except InputError as error:
            raise InputError(f"record {path} {error}") from error
        except (OSError, ValueError) as error:  # of the disk, of UTF-8, of JSON
            raise InputError(f"record {path} cannot be read: {error}") from error
        if record.run_id != run_id:
            raise InputError(f"record {path} says it is {record.run_id}")
        return record

    def set_aside(self, run_id: str) -> Path:
        """Move a damaged record out of the way, without losing it."""
        path = self.path(run_id)
        places = (path.with_name(f"{path.name}.damaged{i or ''}") for i in range(1000))
        return path.rename(next(place for place in places if not place.exists()))

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

    def write_study(self, study: StudyEntry) -> None:
        _write(self.folder / "studies" / f"{study.name}.json", plain(study))

    def studies(self) -> tuple[list[StudyEntry], list[str]]:
        """The whole studies, and what is wrong with the damaged ones."""
        entries, problems = [], []
        for file in sorted((self.folder / "studies").glob("*.json")):
            try:
                entry = read_as(StudyEntry, json.loads(file.read_text(encoding="utf-8")))
                if entry.name != file.stem:
                    raise InputError(f"it says it is {entry.name}")
            except (OSError, ValueError, RecursionError) as error:
                problems.append(f"{file} is not a study of a store: {error}")
            else:
                entries.append(entry)
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


def _write(path: Path, content: Mapping[str, Any]) -> None:
    make_folder(path.parent)
    write_atomically(path, json.dumps(content, indent=1))


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
