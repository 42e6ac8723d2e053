"""What the verbs say: results on standard output, as tables or JSON; notes and progress on standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from repairability._files import write_atomically

if TYPE_CHECKING:
    from repairability.tables import Table

notices = Console(stderr=True)


def say(text: str, style: str | None = None) -> None:
    """One line on standard error, word for word."""
    notices.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def note(message: object) -> None:
    """Something to know that is no error."""
    say(f"note: {message}", "yellow")


def show(as_json: bool, content: object, *tables: Table, line: str = "") -> None:
    """A result: one JSON object, or tables (in colour on a terminal) with a blank line between, and a last line."""
    if as_json:
        print(json_text(content))
        return
    for number, table in enumerate(tables):
        print(end="\n" if number else "")
        Console().print(table.rich()) if sys.stdout.isatty() else print(table)
    if line:
        print(line)


def show_written(as_json: bool, files: Sequence[Path]) -> None:
    """Which files a verb wrote."""
    show(as_json, {"written": [str(file) for file in files]}, line="\n".join(f"wrote {file}" for file in files))


def write_json(file: Path, content: object) -> None:
    write_atomically(file, json_text(content))


def json_text(content: object) -> str:
    """Strict JSON: a number that is not finite is null, since JSON has no word for it; a table is its strings."""
    return json.dumps(_plain(content), indent=2, allow_nan=False)


def _plain(content: object) -> object:
    from repairability.tables import Table

    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, Table):
        return _plain(vars(content))
    if isinstance(content, Path):
        return str(content)
    if isinstance(content, Mapping):
        return {key: _plain(part) for key, part in content.items()}
    return [_plain(part) for part in content] if isinstance(content, (list, tuple)) else content
