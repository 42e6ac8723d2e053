"""Reading a store, or an archive of one, for the verbs that show it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from repairability.errors import InputError, unknown

if TYPE_CHECKING:
    from repairability.experiments import Record, StudyEntry

    StudyRecords = tuple[StudyEntry, Sequence[Record]]


def existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise InputError(f"there is no store at {folder}")
    return folder


def read_studies(folder: Path, chosen: Sequence[str] = ()) -> tuple[list[StudyRecords], list[str]]:
    """The studies of a store or an archive, or those that are chosen; and what is wrong with damaged records."""
    from repairability.experiments import Store
    from repairability.experiments.archive import is_archive, read_archive

    studies: list[StudyRecords]
    problems: list[str] = []
    if is_archive(existing(folder)):
        studies = list(read_archive(folder))
    else:
        store = Store(folder)
        studies = [(entry, store.read_all(entry.run_ids)[0]) for entry in store.studies()]
        problems = store.read_all()[1]
    known = {entry.name: (entry, records) for entry, records in studies}
    for name in chosen:
        if name not in known:
            raise unknown("study", name, known)
    return [known[name] for name in dict.fromkeys(chosen or known)], problems
