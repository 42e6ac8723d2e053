"""An archive: a store's studies and records as CSV files, about 0.5 kB a run, so that it can lie beside the code."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from repairability._files import read_text, write_atomically
from repairability.errors import InputError
from repairability.experiments.spec import RunSpec
from repairability.experiments.store import Record, Store
from repairability.experiments.study import StudyEntry
from repairability.tables import csv_text

STUDIES, RECORDS, NETWORKS, ORIGINS = "studies.csv", "records.csv", "networks.csv", "origins.csv"
DIGITS = 6
"""Figures of an archive have so many significant digits; a record has them all."""

OF_THE_NETWORK = ("totals", "n_all", "projections")
"""What a result repeats of its network: one line of networks.csv instead."""

OF_THE_RUN = ("seconds", "peak_memory_mb")
"""The provenance that is a run's own. The rest is a line of origins.csv, without the host's name."""

ALWAYS = ("task", "rule", "repair", "sparsity", "seed")
"""Settings that every line says; of the others a line has those that are not at their default."""

WHOLE = ("spec.options", "result.transition")
"""Mappings that are one cell, as are those by layer (with dots in their keys); every other one is spread over columns,
such as result.agreement.kl."""

Row = dict[str, str]


def write_archive(store: Store, folder: Path) -> list[Path]:
    """Every study of the store and every run, failed ones and those of no study included: nothing is left out but smoke
    studies, whose figures mean nothing.
    """
    entries = store.studies()
    studies = [entry for entry in entries if not entry.smoke]
    wanted = {run_id for entry in studies for run_id in entry.run_ids}
    smoke = {run_id for entry in entries if entry.smoke for run_id in entry.run_ids} - wanted
    records, problems = store.read_all()
    if problems:
        raise InputError(f"the store has damaged records; run their studies again: {'; '.join(problems)}")
    kept = [record for record in records if record.run_id not in smoke]
    if not kept:
        raise InputError(f"{store.folder} has no runs to archive ({len(records)} of smoke studies)")
    networks: dict[str, Row] = {}
    origins: dict[str, Row] = {}
    rows = [_row(record, networks, origins) for record in kept]
    written = {
        STUDIES: csv_text([_study_row(entry) for entry in studies]),
        RECORDS: _csv(rows),
        NETWORKS: _csv([{"network": key, **networks[key]} for key in sorted(networks)]),
        ORIGINS: _csv([{"origin": key, **origins[key]} for key in sorted(origins)]),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
    for name, text in written.items():
        write_atomically(folder / name, text)
    return [folder / name for name in written]


def is_archive(folder: Path) -> bool:
    return (folder / RECORDS).is_file()


def read_archive(folder: Path) -> list[tuple[StudyEntry, list[Record]]]:
    """The studies of an archive with their records."""
    records = archived_records(folder)
    studies = []
    for row in _rows(folder / STUDIES, "name", "title", "about", "runs"):
        ids, sections = tuple(row["runs"].split()), tuple((row.get("sections") or row["section"]).split())
        entry = StudyEntry(row["name"], row["title"], sections, row["about"], ids)
        studies.append((entry, [records[run_id] for run_id in ids if run_id in records]))
    return studies


def archived_records(folder: Path) -> dict[str, Record]:
    """Every run of an archive by its id, with `DIGITS` digits and without the host's name."""
    if not is_archive(folder):
        raise InputError(f"{folder} is no archive: it has no {RECORDS}")
    networks = {row.pop("network"): row for row in _rows(folder / NETWORKS, "network")}
    origins = {row.pop("origin"): row for row in _rows(folder / ORIGINS, "origin")}
    return {row["run_id"]: _record(row, networks, origins, folder) for row in _rows(folder / RECORDS, "run_id")}


def copy_known(records: Mapping[str, Record], store: Store, run_ids: Iterable[str]) -> int:
    """Write those of these runs that the store lacks into it; how many that were."""
    missing = [run_id for run_id in run_ids if run_id in records and not store.path(run_id).exists()]
    for run_id in missing:
        store.write(records[run_id])
    return len(missing)


def _study_row(entry: StudyEntry) -> dict[str, object]:
    words = {"name": entry.name, "title": entry.title, "sections": " ".join(entry.sections), "about": entry.about}
    return {**words, "runs": " ".join(entry.run_ids)}


def _row(record: Record, networks: dict[str, Row], origins: dict[str, Row]) -> Row:
    """One line; what it shares with others goes into `networks` and `origins`, under a hash of its content."""
    result, about = dict(record.result), dict(record.provenance)
    row = {"run_id": record.run_id, "status": record.status, "error": record.error}
    plain = {name: result.pop(name) for name in OF_THE_NETWORK if name in result}
    if plain:
        row["network"] = _filed(plain, networks)
    if "allocation" in result and list(result["allocation"]) == list(plain.get("totals", {})):
        result["allocation"] = list(result["allocation"].values())  # in the order of totals
    own = {name: about.pop(name) for name in OF_THE_RUN if name in about}
    about.pop("host", None)
    if about:
        row["origin"] = _filed(about, origins)
    said = {*ALWAYS, *record.spec.differences()}
    spec = {name: value for name, value in record.spec.to_dict().items() if name in said}
    return row | _spread({"spec": spec, "result": result, **own})


def _record(row: Row, networks: Mapping[str, Row], origins: Mapping[str, Row], folder: Path) -> Record:
    try:
        head = {name: row.pop(name, "") for name in ("run_id", "status", "error", "network", "origin")}
        content = _gathered(row)
        own = {name: content[name] for name in OF_THE_RUN if name in content}
        result = content.get("result", {})
        if head["network"]:
            result |= _gathered(networks[head["network"]])
        if not isinstance(result.get("allocation", {}), dict):
            result["allocation"] = dict(zip(result["totals"], result["allocation"], strict=True))
        about = _gathered(origins[head["origin"]]) if head["origin"] else {}
        spec = RunSpec.read(content["spec"])
        return Record(head["run_id"], spec, head["status"], result, head["error"], {**about, **own})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder / RECORDS}: run {head['run_id']} is damaged: {error}") from error


def _filed(content: Mapping[str, Any], shelf: dict[str, Row]) -> str:
    """The key of these cells in `shelf`; it depends on nothing else, so that a new run leaves old lines as they are."""
    cells = {name: _packed(value) for name, value in content.items()}
    key = hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()[:8]
    shelf[key] = cells
    return key


def _spread(content: Mapping[str, Any], prefix: str = "") -> Row:
    cells: Row = {}
    for name, value in content.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and path not in WHOLE and not any("." in key for key in value):
            cells |= _spread(value, f"{path}.")
        else:
            cells[path] = _packed(value)
    return cells


def _gathered(cells: Mapping[str, str]) -> dict[str, Any]:
    """The opposite of `_spread`; an empty cell is a name that was not there."""
    content: dict[str, Any] = {}
    for path, text in cells.items():
        if text:
            *folders, name = path.split(".")
            place = content
            for each in folders:
                place = place.setdefault(each, {})
            place[name] = _unpacked(text)
    return content


def _packed(value: object) -> str:
    """JSON; a plain word, which no reader of JSON would take for something else, as it is."""
    if isinstance(value, str) and value and value[0] not in '"[{' and _unpacked(value) == value:
        return value
    return json.dumps(_rounded(value), separators=(",", ":"))


def _unpacked(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        if text[0] in '"[{':
            raise
        return text


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def _csv(rows: Sequence[Row]) -> str:
    """Over the union of the columns: plain names first, then the spec's in the order of its fields, then the rest."""
    fields = [f"spec.{name}" for name in RunSpec.model_fields]
    found = list(dict.fromkeys(column for row in rows for column in row))
    head = [column for column in found if "." not in column]
    spec = [column for column in fields if column in found]
    columns = [*head, *spec, *(column for column in found if column not in head and column not in spec)]
    return csv_text([{column: row.get(column, "") for column in columns} for row in rows])


def _rows(file: Path, *needed: str) -> list[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a table of layers is longer than csv expects
    rows = [dict(row) for row in csv.DictReader(io.StringIO(read_text(file)))]
    for column in needed:
        if any(row.get(column) is None for row in rows):
            raise InputError(f"{file} is damaged: the column {column!r} is not in every line")
    return rows
