"""Store: a folder with one JSON record per run, written then renamed and synced."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from repairability._files import write_atomically
from repairability._frames import frame_of
from repairability.errors import InputError
from repairability.experiments.spec import RunSpec
from repairability.experiments.study import StudyEntry


@dataclass(frozen=True)
class Record:
    """What one run gave: its result, or the error it failed with, and where and when it came about.

    result of task "prune": achieved, global_sparsity, top1, top5, loss, n, dense_top1, dense_bn_top1, allocation and
    totals (by layer), n_all, projections, fingerprint, objective (J or None), agreement (a dict or None).
    result of task "detect": transition (Transition.to_dict()), fingerprint.
    provenance: commit, versions, hardware, host, seconds (by stage), peak_memory_mb.
    """

    run_id: str
    spec: RunSpec
    status: str  # "done" or "failed"
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """With a digest of the rest, so that an edited record is noticed."""
        content = {
            "run_id": self.run_id,
            "status": self.status,
            "spec": self.spec.to_dict(),
            "result": dict(self.result),
            "error": self.error,
            "provenance": dict(self.provenance),
        }
        return {**content, "digest": _digest(content)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Record:
        try:
            return cls.from_dict(json.loads(text))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"is not a whole record: {error}") from error

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Record:
        rest = {key: value for key, value in content.items() if key != "digest"}
        if content["digest"] != _digest(rest):
            raise InputError("was edited: its digest does not fit its content")
        return cls(
            content["run_id"],
            RunSpec.read(content["spec"]),
            content["status"],
            content["result"],
            content["error"],
            content["provenance"],
        )

    def row(self) -> dict[str, Any]:
        """One flat row: the spec's settings, then the plain figures of the result."""
        plain = {k: v for k, v in self.result.items() if v is None or isinstance(v, (int, float, str, bool))}
        seconds = self.provenance.get("seconds", {})
        return {
            "run_id": self.run_id,
            "status": self.status,
            **self.spec.to_dict(),
            **plain,
            "seconds": sum(seconds.values()),
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

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def write(self, record: Record) -> None:
        _write(self.path(record.run_id), record.to_json())

    def read(self, run_id: str) -> Record | None:
        """The record, or None where there is none; a damaged one is an error."""
        try:
            text = self.path(run_id).read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"record {self.path(run_id)} cannot be read: {error}") from error
        try:
            record = Record.from_json(text)
        except InputError as error:
            raise InputError(f"record {self.path(run_id)} {error}") from error
        if record.run_id != run_id:
            raise InputError(f"record {self.path(run_id)} says it is {record.run_id}")
        return record

    def set_aside(self, run_id: str) -> Path:
        """Move a damaged record out of the way, without losing it."""
        path = self.path(run_id)
        aside = next(
            place for i in range(1000) if not (place := path.with_name(f"{path.name}.damaged{i or ''}")).exists()
        )
        return path.rename(aside)

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
                continue
            if record is not None:
                records.append(record)
        return records, problems

    def frame(self) -> Any:
        """Every whole record as a row of a pandas frame."""
        return frame_of([record.row() for record in self.read_all()[0]])

    def write_study(self, study: StudyEntry) -> None:
        _write(self.folder / "studies" / f"{study.name}.json", json.dumps(asdict(study), indent=1))

    def studies(self) -> list[StudyEntry]:
        found = []
        for file in sorted((self.folder / "studies").glob("*.json")):
            try:
                found.append(TypeAdapter(StudyEntry).validate_python(json.loads(file.read_text())))
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                raise InputError(f"{file} is not a study of a store: {error}") from error
        return found

    def members(self, study: str) -> tuple[str, ...]:
        """The runs of a study, as far as the store knows it."""
        return next((entry.run_ids for entry in self.studies() if entry.name == study), ())

    @contextmanager
    def claim(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Whether this process may do `name`: one at a time, on all machines that share the folder.

        The lock is the kernel's, so it goes with its process however that ends; its file stays, empty.
        """
        path = self.folder / "locks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {path.parent}: {error.strerror}") from error
    write_atomically(path, text)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
