"""The verb archive."""

from __future__ import annotations

from pathlib import Path

from typer import Option

from repairability._files import check_folder
from repairability.cli.options import STORE
from repairability.cli.output import Answer, written


def verb(store: Path = STORE, out: Path = Option(..., metavar="FOLDER", help="Where the archive goes.")) -> Answer:
    """Write every run of a store into an archive, small enough to lie beside the code.

    Failed runs and those of no study are kept too, smoke studies are not. list, report and renew read it as they read
    a store, and sweep --known goes on from it.

    Example: repairability archive --store runs --out results
    """
    from repairability.experiments import Store
    from repairability.experiments.archive import RUNS, write_archive

    check_folder(out, RUNS)
    return written(write_archive(Store(store), out))
