"""The verb renew."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from repairability._files import check_file
from repairability.cli.options import STORE
from repairability.cli.output import Answer, note


def verb(
    documents: list[Path] = Argument(..., metavar="DOCUMENT...", help="Markdown files with marks."),
    store: Path = STORE,
    check: bool = Option(False, "--check", help="Write nothing; exit 1 and name what is out of date."),
) -> Answer:
    """Make the tables and figures of documents anew from a store.

    A table stands between the lines <!-- study NAME --> and <!-- end -->, a figure where the document links to it.
    Everything is made before anything is written.

    Example: repairability renew README.md --store reproduction/results --check
    """
    from repairability.experiments.archive import read_studies
    from repairability.report.documents import renew
    from repairability.report.files import write_file
    from repairability.report.store import Studies

    for document in () if check else documents:
        check_file(document)
    studies, problems = read_studies(store)
    note(*problems)
    sections = Studies(studies)
    renewals = [renewal for document in documents for renewal in renew(document, sections)]
    outdated = {str(renewal.path): list(renewal.outdated) for renewal in renewals if renewal.outdated}
    for renewal in renewals:
        if renewal.outdated and not check:
            write_file(renewal.path, renewal.content)
    paths = [str(renewal.path) for renewal in renewals]
    state = "out of date" if check else "renewed"
    lines = [f"{state} in {x}: {', '.join(outdated[x])}" if x in outdated else f"{x} is up to date" for x in paths]
    return Answer({"checked": paths, "outdated": outdated}, lines, code=int(check and bool(outdated)))
