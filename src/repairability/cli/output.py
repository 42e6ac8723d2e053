"""What the verbs say: answers on standard output, as tables or JSON; notes and progress on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from repairability._files import write_atomically
from repairability._json import strict_json
from repairability.cli import standard
from repairability.tables import Table

notices = standard.Notices()


@dataclass(frozen=True)
class Answer:
    """What a verb answers: an object for --json; else tables and lines, and notes after them, which JSON holds too."""

    content: object
    parts: Sequence[Table | str] = ()
    notes: Sequence[str] = ()
    code: int = 0


def written(files: Sequence[Path]) -> Answer:
    """Which files a verb wrote."""
    return Answer({"written": files}, [f"wrote {file}" for file in files])


def note(*messages: object) -> None:
    """Things to know that are no errors."""
    for message in messages:
        notices.say(f"note: {message}", "yellow")


def show(answer: Answer, as_json: bool) -> None:
    """One JSON object, or the parts: tables (in colour on a terminal) with a blank line between, and lines."""
    if as_json:
        standard.answer(json_text(answer.content) + "\n")
        return
    lines = []
    for before, part in zip(("", *answer.parts), answer.parts, strict=False):
        between = "\n" if isinstance(before, Table) and isinstance(part, Table) else ""
        lines.append(f"{between}{_drawn(part) if isinstance(part, Table) else part}\n")
    standard.answer("".join(lines))
    note(*answer.notes)


def _drawn(table: Table) -> str:
    """In colour where somebody sees it, as wide as the terminal."""
    if not sys.stdout.isatty():
        return str(table)
    terminal = Console()
    with terminal.capture() as drawn:
        terminal.print(table.rich(), end="")
    return drawn.get().rstrip("\n")


def write_json(file: Path, content: object) -> None:
    write_atomically(file, json_text(content))


def json_text(content: object) -> str:
    """Strict JSON; a table is its strings."""
    return strict_json(content, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Table):
        return vars(value)
    return os.fspath(value)
