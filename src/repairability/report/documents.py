"""A store's tables and charts inside a document: tables between marks, charts where it links to them.

`<!-- study NAME -->` ... `<!-- end -->` holds all tables of a study, `<!-- study NAME SECTION -->` those of one of its
sections; a number after either takes one table alone. `<!-- studies -->` is the list of all studies. A picture
`![...](some/STUDY_CHART.svg)` is the chart of that name. Marks are whole lines; code blocks are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repairability._files import read_text
from repairability.errors import InputError, unknown
from repairability.report.drawing import render
from repairability.report.markup import to_markdown
from repairability.report.store import Studies, overview

MARK = re.compile(r"<!--\s*((?:study|studies)\b.*?)-->")
END = re.compile(r"<!--\s*end\s*-->")
PICTURE = re.compile(r"""!\[[^\]]*\]\(([^)\s]+\.svg)[^)]*\)|<img\b[^>]*\bsrc="([^"]+\.svg)\"""")


@dataclass(frozen=True)
class Renewal:
    """A file as it should be, and which parts of it are not so yet."""

    path: Path
    content: str | bytes
    outdated: Sequence[str]


def renew(document: Path, studies: Studies) -> list[Renewal]:
    """The document with its tables made anew, and the figures it links to; nothing is written."""
    given = read_text(document)
    text = given.replace("\r\n", "\n")
    content, outdated = with_tables(text, studies, str(document))
    content = content.replace("\n", "\r\n") if "\r\n" in given else content  # what Windows wrote stays so
    return [Renewal(document, content, outdated), *figures(document, text, studies)]


def with_tables(text: str, studies: Studies, name: str = "the document") -> tuple[str, list[str]]:
    """The text with its tables made anew, and the marks whose tables changed."""
    kept: list[str] = []
    outdated: list[str] = []
    mark, inside = "", list[str]()
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        words = line.strip()
        fenced ^= words.startswith("```") and not mark
        start, end = MARK.fullmatch(words), END.fullmatch(words)
        if fenced or not (start or end or mark):
            kept.append(line)
        elif start and mark:
            raise InputError(f"{name}, line {number}: another mark begins before <!-- end --> closes {mark!r}")
        elif end and not mark:
            raise InputError(f"{name}, line {number}: <!-- end --> closes nothing")
        elif start:
            mark, inside = " ".join(start[1].split()), []
            kept.append(line)
        elif end:
            made = _tables(mark, studies, f"{name}, line {number - len(inside) - 1}")
            if "\n".join(inside) != made:
                outdated.append(mark)
            kept += [made, line]
            mark = ""
        else:
            inside.append(line)
    if mark:
        raise InputError(f"{name}: the mark {mark!r} is not closed by <!-- end -->")
    return "\n".join(kept), outdated


def _tables(mark: str, studies: Studies, where: str) -> str:
    """What stands between a mark and its end."""
    kind, *words = mark.split()
    if kind == "studies" and not words:
        return f"\n{to_markdown(overview(list(studies.given.values())))}"
    number = int(words.pop()) if len(words) > 1 and words[-1].isdigit() else None
    if kind != "study" or len(words) not in (1, 2):
        raise InputError(f"{where}: a mark is studies or study NAME [SECTION] [NUMBER], not {mark!r}")
    try:
        tables = studies.tables(*words)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if number is not None:
        if not 1 <= number <= len(tables):
            raise InputError(f"{where}: study {' '.join(words)} has tables 1 to {len(tables)}, not {number}")
        tables = [tables[number - 1]]
    return "\n" + "\n".join(map(to_markdown, tables))


def figures(document: Path, text: str, studies: Studies) -> list[Renewal]:
    """The pictures that a document shows; one that is no study's must be there already."""
    renewals = {}
    for link in (markdown or html for markdown, html in PICTURE.findall(text)):
        path = document.parent / link
        if "://" in link or path in renewals:
            continue
        draw = studies.figure(path.stem)
        if draw is not None:
            chart = draw()
            if chart is None:
                raise InputError(f"{document}: the runs of {path.stem} do not fill a figure")
            content = render(chart, "svg")
            same = path.is_file() and path.read_bytes() == content
            renewals[path] = Renewal(path, content, [] if same else [f"figure {path.stem}"])
        elif not path.is_file():
            known = [name for study in studies.given for name in studies.figures(study)]
            raise InputError(f"{document}: {unknown('figure', path.stem, known)}")
    return list(renewals.values())
