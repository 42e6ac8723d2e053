"""The pages: templates with marks for tables and braces for numbers, made from the records in `results/`.

A study's runs are those of its TOML file: each cell it defines, with the record of the archive where there is one.
`<!-- source: COMMAND -->` ... `<!-- end source -->` holds what no record has, and the page prints the command;
`<!-- networks -->` is the table of networks.toml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from repairability._files import read_text
from repairability.experiments.archive import read_archive
from repairability.experiments.record import Record
from repairability.experiments.study import StudyEntry, read_study
from repairability.report.documents import Renewal, figures, with_tables
from repairability.report.markup import to_markdown
from repairability.report.store import Studies
from reproduction.networks import table
from reproduction.values import with_values

HERE = Path(__file__).parent
NETWORKS = "<!-- networks -->\n<!-- end -->\n"
SOURCE = re.compile(r"<!-- source: (.+?) -->\n(.*?)<!-- end source -->\n", re.DOTALL)


def pages() -> dict[Path, Path]:
    """Each page and its template: README first, the others in `pages/`."""
    templates = sorted((HERE / "templates").glob("*.md"))
    return {(HERE if file.name == "README.md" else HERE / "pages") / file.name: file for file in templates}


def studies(results: Path = HERE / "results", folder: Path = HERE / "studies") -> Studies:
    """Every study that a TOML file defines, with the records there are of it."""
    known = {_key(record): record for record in read_archive(results)[1].values()}
    files = sorted(folder.rglob("*.toml"), key=lambda file: file.stem)
    return Studies([_with_records(file, known) for file in files])


def render(studies: Studies) -> list[Renewal]:
    """Every page as it should be, and the figures it shows; nothing is written."""
    made: list[Renewal] = []
    for page, template in pages().items():
        words = with_values(read_text(template), studies)
        words = SOURCE.sub(_sourced, words).replace(NETWORKS, f"\n{to_markdown(table())}\n")
        text, _ = with_tables(words, studies, str(template))
        text = f"<!-- Made by `make results` from templates/{template.name}: edit that. -->\n\n{text}"
        same = page.is_file() and read_text(page) == text
        made += [Renewal(page, text, [] if same else [page.name]), *figures(page, text, studies)]
    return made


def _with_records(file: Path, known: Mapping[str, Record]) -> tuple[StudyEntry, list[Record]]:
    study = read_study(file)
    cells = [known.get(spec.model_dump_json()) for spec in study.specs]
    ids = tuple(f"not-run-{i}" if cell is None else cell.run_id for i, cell in enumerate(cells))
    entry = StudyEntry(study.name, study.title, study.sections, study.about, ids)
    return entry, [cell for cell in cells if cell is not None]


def _key(record: Record) -> str:
    return record.spec.model_dump_json()


def _sourced(found: re.Match[str]) -> str:
    return f"*Not from the records; by hand: {found[1]}.*\n\n{found[2].strip()}\n"
