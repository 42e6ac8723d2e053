"""The verb archive."""

from __future__ import annotations

from pathlib import Path

from typer import Option

from repairability.cli.options import AS_JSON, STORE
from repairability.cli.output import show_written
from repairability.cli.stores import existing
from repairability.errors import InputError


def verb(
    store: Path = STORE,
    out: Path = Option(..., metavar="FOLDER", help="Where the archive goes."),
    as_json: bool = AS_JSON,
) -> None:
    """Write every run of a store into an archive, small enough to lie beside the code.

    Failed runs and those of no study are kept too, smoke studies are not. list, report and renew read it as they read
    a store, and sweep --known goes on from it.

    Example: repairability archive --store runs --out results
    """
    from repairability.experiments import Store
    from repairability.experiments.archive import is_archive, write_archive

    if is_archive(existing(store)):
        raise InputError(f"{store} is an archive already; archive takes a store")
    show_written(as_json, write_archive(Store(store), out))
