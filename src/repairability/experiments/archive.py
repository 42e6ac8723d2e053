"""An archive: a store's studies and records as two CSV files, small enough to be kept beside the code."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from repairability._files import read_text, write_atomically
from repairability.errors import InputError
from repairability.experiments.spec import RunSpec
from repairability.experiments.store import Record, Store, StudyEntry
from repairability.tables import csv_text

RECORDS, STUDIES = "records.csv", "studies.csv"
DIGITS = 6
"""Figures of an archive have so many significant digits; a record has them all."""

Studies = list[tuple[StudyEntry, list[Record]]]


def write_archive(store: Store, folder: Path) -> list[Path]:
    """Every study of the store and every run of them, failed ones included: nothing is left out."""
    studies = store.studies()
    ids = list(dict.fromkeys(run_id for entry in studies for run_id in entry.run_ids))
    records, problems = store.read_all(ids)
    if problems:
        raise InputError(f"the store has damaged records; run their studies again: {'; '.join(problems)}")
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        STUDIES: csv_text(
            [
                {
                    "name": entry.name,
                    "title": entry.title,
                    "section": entry.section,
                    "about": entry.about,
                    "runs": " ".join(entry.run_ids),
                }
                for entry in studies
            ]
        ),
        RECORDS: csv_text([_row(record) for record in sorted(records, key=lambda record: record.run_id)]),
    }
    for name, text in written.items():
        write_atomically(folder / name, text)
    return [folder / name for name in written]


def is_archive(folder: Path) -> bool:
    return (folder / RECORDS).is_file()


def read_archive(folder: Path) -> Studies:
    """The studies of an archive with their records."""
    records = {row["run_id"]: _record(row, folder) for row in _rows(folder / RECORDS)}
    studies = []
    for row in _rows(folder / STUDIES):
        ids = tuple(row["runs"].split())
        entry = StudyEntry(row["name"], row["title"], row["section"], row["about"], ids)
        studies.append((entry, [records[run_id] for run_id in ids if run_id in records]))
    return studies


def _row(record: Record) -> dict[str, object]:
    content = record.to_dict()
    return {
        "run_id": record.run_id,
        "status": record.status,
        "spec": _packed(record.spec.differences()),
        "result": _packed(content["result"]),
        "error": record.error,
        "provenance": _packed(content["provenance"]),
    }


def _record(row: dict[str, str], folder: Path) -> Record:
    try:
        spec, result, about = (json.loads(row[name]) for name in ("spec", "result", "provenance"))
        return Record(row["run_id"], RunSpec.read(spec), row["status"], result, row["error"], about)
    except (KeyError, json.JSONDecodeError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder / RECORDS}: run {row.get('run_id')} is damaged: {error}") from error


def _packed(value: object) -> str:
    return json.dumps(_rounded(value), separators=(",", ":"), sort_keys=True)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def _rows(file: Path) -> Sequence[dict[str, str]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a record is longer than csv expects
    return list(csv.DictReader(io.StringIO(read_text(file))))
