"""Report: results as tables, charts and one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repairability.report.data import ReportData
from repairability.report.files import FORMATS, write_contents
from repairability.report.single import contents

__all__ = ["FORMATS", "ReportData", "write_report"]


def write_report(data: ReportData, out: str | Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the report of one model in these formats, and return the files; see `files.write_contents`."""
    return write_contents(contents(data), out, formats)
