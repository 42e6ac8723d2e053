"""An archive: a store's studies and records as one file, about 0.3 kB a run, so that it can lie beside the code.

Gzipped JSON lines: first {"study": ...} for each study, then {"record": ...} for each run, sorted by id.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from repairability._files import make_folder, write_atomically
from repairability._json import read_json, strict_json
from repairability.errors import InputError, first_line, first_twice, shortened
from repairability.experiments.record import Record
from repairability.experiments.spec import plain, read_as
from repairability.experiments.store import Store
from repairability.experiments.study import StudyEntry
from repairability.naming import named

RUNS = "runs.jsonl.gz"
LONGEST = 2**30
"""Bytes of an archive's lines, beyond which it is not believed."""

DIGITS = 6
"""Figures of an archive have so many significant digits; a record has them all."""

StudyRecords = tuple[StudyEntry, Sequence[Record]]


def write_archive(store: Store, folder: Path) -> list[Path]:
    """Every study of the store and every run, failed ones and those of no study included: nothing is left out but smoke
    studies, whose figures mean nothing, and the names of hosts.
    """
    if is_archive(store.folder):
        raise InputError(f"{store.folder} is an archive already; archive takes a store")
    if not os.path.isdir(store.folder):
        raise InputError(f"there is no store at {store.folder}")
    entries, odd = store.studies()
    studies = [entry for entry in entries if not entry.smoke]
    wanted = {run_id for entry in studies for run_id in entry.run_ids}
    smoke = {run_id for entry in entries if entry.smoke for run_id in entry.run_ids} - wanted
    records, problems = store.read_all()
    if odd or problems:
        listed = "; ".join([*odd, *problems])
        raise InputError(f"the store has files that cannot be archived; sweep damaged ones again: {listed}")
    kept = [record for record in records if record.run_id not in smoke]
    if not kept:
        raise InputError(f"{store.folder} has no runs to archive ({len(records)} of smoke studies)")
    lines = [{"study": plain(entry)} for entry in studies] + [{"record": _archived(record)} for record in kept]
    text = "".join(strict_json(line, indent=None) + "\n" for line in lines)
    make_folder(folder)
    write_atomically(folder / RUNS, gzip.compress(text.encode(), mtime=0))
    return [folder / RUNS]


def is_archive(folder: Path) -> bool:
    return os.path.isfile(folder / RUNS)


def read_archive(folder: Path) -> tuple[list[StudyEntry], dict[str, Record]]:
    """The studies of an archive; and every run by its id, with `DIGITS` digits and without the host's name."""
    if not is_archive(folder):
        raise InputError(f"{folder} is no archive: it has no {RUNS}")
    try:
        lines = [read_json(line.decode()) for line in _inflated((folder / RUNS).read_bytes()).splitlines()]
        studies = [read_as(StudyEntry, line["study"]) for line in lines if "study" in line]
        records = [Record.of(line["record"]) for line in lines if "study" not in line]
        for names in ([study.name for study in studies], [record.run_id for record in records]):
            if (twice := first_twice(names)) is not None:
                raise InputError(f"{shortened(twice)} comes twice")
        if not records:
            raise ValueError("it holds no run")
    except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder / RUNS} is damaged: {first_line(error)}") from error
    return studies, {record.run_id: record for record in records}


def _inflated(content: bytes) -> bytes:
    with gzip.open(io.BytesIO(content)) as file:
        text = file.read(LONGEST + 1)
    if len(text) > LONGEST:
        raise InputError(f"its lines are longer than {LONGEST:,} bytes")
    return text


def read_studies(folder: Path, chosen: Sequence[str] = ()) -> tuple[list[StudyRecords], list[str]]:
    """The studies of a store or an archive, or those that are chosen; and what is wrong with damaged records."""
    problems: list[str] = []
    if is_archive(folder):
        entries, records = read_archive(folder)
    elif os.path.isdir(folder):
        (entries, odd), (whole, problems) = Store(folder).studies(), Store(folder).read_all()
        problems = [*odd, *problems]
        records = {record.run_id: record for record in whole}
    else:
        raise InputError(f"there is no store at {folder}")
    studies = {x.name: (x, [records[run_id] for run_id in x.run_ids if run_id in records]) for x in entries}
    return [named("study", name, studies) for name in dict.fromkeys(chosen or studies)], problems


def copy_known(records: Mapping[str, Record], store: Store, run_ids: Iterable[str]) -> int:
    """Write those of these runs that the store lacks into it; how many that were."""
    missing = [run_id for run_id in run_ids if run_id in records and not store.path(run_id).exists()]
    for run_id in missing:
        store.write(records[run_id])
    return len(missing)


def _archived(record: Record) -> Any:
    provenance = {name: value for name, value in record.provenance.items() if name != "host"}
    text = strict_json({**record.content(), "provenance": provenance}, indent=None)
    return json.loads(text, parse_float=lambda figure: float(f"{float(figure):.{DIGITS}g}"))
