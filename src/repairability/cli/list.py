"""The verb list."""

from __future__ import annotations

from pathlib import Path

from repairability.cli.options import AS_JSON, STORE
from repairability.cli.output import note, show
from repairability.cli.stores import read_studies


def verb(store: Path = STORE, as_json: bool = AS_JSON) -> None:
    """Print which studies a store has, how far they are, and how long they took.

    Example: repairability list --store runs
    """
    from repairability.report.store import overview

    studies, problems = read_studies(store)
    for problem in problems:
        note(problem)
    table = overview(studies)
    show(as_json, table, table)
