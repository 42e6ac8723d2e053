"""The verb list."""

from __future__ import annotations

from pathlib import Path

from repairability.cli.options import STORE
from repairability.cli.output import Answer, note


def verb(store: Path = STORE) -> Answer:
    """Print which studies a store has, how far they are, and how long they took.

    Example: repairability list --store runs
    """
    from repairability.experiments.archive import read_studies
    from repairability.report.store import overview

    studies, problems = read_studies(store)
    note(*problems)
    table = overview(studies)
    return Answer(table, [table])
