"""The files of a report: what each format writes, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from repairability._files import check_folder, check_name, make_folder, write_atomically
from repairability.errors import unknown
from repairability.report.drawing import render
from repairability.report.markup import to_latex, to_markdown
from repairability.tables import Table

if TYPE_CHECKING:
    from altair import LayerChart

Files = Mapping[str, str | bytes]
"""File names and their whole content."""


@dataclass(frozen=True)
class Contents:
    """What a report holds: a page, tables, CSV and charts by name; each is made when a format asks for it."""

    page: Callable[[], str]
    tables: Callable[[], Mapping[str, Table]]
    csv: Callable[[], Mapping[str, str]]
    charts: Callable[[], Mapping[str, LayerChart]]


def _drawn(kind: str, report: Contents) -> Files:
    return {f"{name}.{kind}": render(chart, kind) for name, chart in report.charts().items()}


FORMATS: dict[str, Callable[[Contents], Files]] = {
    "html": lambda report: {"report.html": report.page()},
    "md": lambda report: {f"{name}.md": to_markdown(table) for name, table in report.tables().items()},
    "csv": lambda report: {f"{name}.csv": text for name, text in report.csv().items()},
    "latex": lambda report: {f"{name}.tex": to_latex(table, name) for name, table in report.tables().items()},
    **{kind: partial(_drawn, kind) for kind in ("png", "pdf", "svg")},
}
"""A format and what it writes."""


def write_contents(contents: Contents, out: str | Path, formats: Sequence[str]) -> list[Path]:
    """Write these formats and return the files, in their order.

    `out` is a folder, or the page itself if it ends in .html; then the other formats go into a folder of the same stem
    beside it. Everything is made before anything is written, and each file appears whole or not at all.
    """
    folder = check_out(Path(out), formats)
    page = None if folder == Path(out) else Path(out)
    files = {
        page if page is not None and name == "html" else folder / check_name(file): content
        for name in dict.fromkeys(formats)
        for file, content in FORMATS[name](contents).items()
    }
    for path, content in files.items():
        write_file(path, content)
    return list(files)


def check_out(out: Path, formats: Sequence[str]) -> Path:
    """The folder of all but the page. A format nobody knows, and a place that cannot be written, are refused before
    anything is read or drawn.
    """
    for name in formats:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    is_page = out.suffix.lower() == ".html"
    folder = out.with_suffix("") if is_page else out
    if is_page and "html" in formats:
        check_folder(out.parent, out.name)
    if not is_page or any(name != "html" for name in formats):
        check_folder(folder)
    return folder


def write_file(path: Path, content: str | bytes) -> None:
    """Whole or not at all, in a folder that is made if absent."""
    make_folder(path.parent)
    write_atomically(path, content)
