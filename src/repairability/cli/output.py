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
from repairability.tables import Table

notices = Console(stderr=True)


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


def say(text: str, style: str | None = None) -> None:
    """One line on standard error, word for word."""
    notices.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def note(*messages: object) -> None:
    """Things to know that are no errors."""
    for message in messages:
        say(f"note: {message}", "yellow")


def show(answer: Answer, as_json: bool) -> None:
    """One JSON object, or the parts: tables (in colour on a terminal) with a blank line between, and lines."""
    if as_json:
        print(json_text(answer.content))
        return
    before: Table | str = ""
    for part in answer.parts:
        if isinstance(part, str):
            print(part)
        else:
            print(end="\n" if isinstance(before, Table) else "")
            Console().print(part.rich()) if sys.stdout.isatty() else print(part)
        before = part
    note(*answer.notes)


def write_json(file: Path, content: object) -> None:
    write_atomically(file, json_text(content))


def json_text(content: object) -> str:
    """Strict JSON; a table is its strings."""
    return strict_json(content, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Table):
        return vars(value)
    return os.fspath(value)
