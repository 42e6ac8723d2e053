"""A store's tables and figures inside a document: tables between marks, figures where it links to them.

`<!-- study NAME -->` ... `<!-- end -->` holds all tables of a study, `<!-- study NAME 2 -->` its second one,
`<!-- studies -->` the list of all studies. A picture `![...](some/STUDY_FIGURE.svg)` is the figure of that name. Marks
are whole lines; code blocks are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repairability._files import read_text
from repairability.errors import InputError, unknown
from repairability.experiments.store import Record, StudyEntry
from repairability.report.drawing import render
from repairability.report.markup import to_markdown
from repairability.report.store import overview
from reproduction.sections import Section, study_section
from reproduction.sections.section import Draw

MARK = re.compile(r"<!--\s*((?:study|studies)\b.*?)-->")
END = re.compile(r"<!--\s*end\s*-->")
PICTURE = re.compile(r"""!\[[^\]]*\]\(([^)\s]+\.svg)[^)]*\)|<img\b[^>]*\bsrc="([^"]+\.svg)\"""")


@dataclass(frozen=True)
class Renewal:
    """A file as it should be, and which parts of it are not so yet."""

    path: Path
    content: str | bytes
    outdated: Sequence[str]


class Studies(Mapping[str, Section]):
    """The sections of a store's studies by name; each is made once, when somebody wants it."""

    def __init__(self, studies: Sequence[tuple[StudyEntry, Sequence[Record]]]) -> None:
        self.given = {entry.name: (entry, records) for entry, records in studies}
        self.made: dict[str, Section] = {}

    def __getitem__(self, name: str) -> Section:
        if name not in self.given:
            raise unknown("study", name, self.given)
        if name not in self.made:
            entry, records = self.given[name]
            self.made[name] = study_section(entry.section, records, smoke=entry.smoke)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)

    def figure(self, name: str) -> Draw | None:
        """The figure STUDY_FIGURE, where there is one."""
        for study in self:
            if name.startswith(f"{study}_") and (found := self[study].figures.get(name.removeprefix(f"{study}_"))):
                return found
        return None


def renew(document: Path, studies: Studies) -> list[Renewal]:
    """The document with its tables made anew, and the figures it links to; nothing is written."""
    text = read_text(document)
    content, outdated = with_tables(text, studies, str(document))
    return [Renewal(document, content, outdated), *_figures(document, text, studies)]


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
    if kind != "study" or len(words) not in (1, 2) or (len(words) == 2 and not words[1].isdigit()):
        raise InputError(f"{where}: a mark is study NAME, study NAME 2 or studies, not {mark!r}")
    try:
        tables = list(studies[words[0]].tables)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if len(words) == 2:
        if not 1 <= int(words[1]) <= len(tables):
            raise InputError(f"{where}: study {words[0]} has tables 1 to {len(tables)}, not {words[1]}")
        tables = [tables[int(words[1]) - 1]]
    return "\n" + "\n".join(map(to_markdown, tables))


def _figures(document: Path, text: str, studies: Studies) -> list[Renewal]:
    """The pictures that a document shows; one that is no study's must be there already."""
    found = {}
    for markdown, html in PICTURE.findall(text):
        link = markdown or html
        path = document.parent / link
        if "://" in link or path in found:
            continue
        draw = studies.figure(path.stem)
        if draw is None:
            if not path.is_file():
                known = [f"{study}_{name}" for study in studies for name in studies[study].figures]
                raise InputError(f"{document}: {unknown('figure', path.stem, known)}")
            continue
        figure = draw()
        if figure is None:
            raise InputError(f"{document}: the runs of {path.stem} do not fill a figure")
        content = render(figure, "svg")
        same = path.is_file() and path.read_bytes() == content
        found[path] = Renewal(path, content, [] if same else [f"figure {path.stem}"])
    return list(found.values())
