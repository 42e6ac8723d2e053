"""Report: results as tables, figures and one self-contained page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from repairability.errors import unknown
from repairability.report.data import ReportData
from repairability.report.figures import named_figures, render
from repairability.report.files import Files, write_files
from repairability.report.html import page
from repairability.report.markup import to_latex, to_markdown
from repairability.report.rows import named_csv
from repairability.report.tables import named_tables

__all__ = ["FORMATS", "ReportData", "write_report"]


def _html(data: ReportData) -> Files:
    return {"report.html": page(data)}


def _markdown(data: ReportData) -> Files:
    return {f"{name}.md": to_markdown(table) for name, table in named_tables(data).items()}


def _csv(data: ReportData) -> Files:
    return {f"{name}.csv": text for name, text in named_csv(data).items()}


def _latex(data: ReportData) -> Files:
    return {f"{name}.tex": to_latex(table, name) for name, table in named_tables(data).items()}


def _png(data: ReportData) -> Files:
    return {f"{name}.png": render(figure, "png") for name, figure in named_figures(data).items()}


def _pdf(data: ReportData) -> Files:
    return {f"{name}.pdf": render(figure, "pdf") for name, figure in named_figures(data).items()}


def _svg(data: ReportData) -> Files:
    return {f"{name}.svg": render(figure, "svg") for name, figure in named_figures(data).items()}


FORMATS: dict[str, Callable[[ReportData], Files]] = {
    "html": _html,
    "md": _markdown,
    "csv": _csv,
    "latex": _latex,
    "png": _png,
    "pdf": _pdf,
    "svg": _svg,
}
"""A format and what it writes: file names and their whole content."""


def write_report(data: ReportData, out: str | Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the report and return the files, in the order of `formats`.

    `out` is a folder, or the page itself if it ends in .html; then the other formats go into a folder of the same stem
    beside it. Everything is made before anything is written, and each file appears whole or not at all.
    """
    for name in formats:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    return write_files({name: FORMATS[name](data) for name in dict.fromkeys(formats)}, out)
