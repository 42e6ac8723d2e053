"""Progress on anything that may take longer than two seconds; silent unless standard error is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")
_PATIENCE = 2.0  # seconds without a bar


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items, with a bar from the third second on; the bar goes away at the end."""
    if not sys.stderr.isatty():
        yield from items
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(description, total=total)
    begun, shown = time.monotonic(), False
    try:
        for item in items:
            yield item
            progress.advance(task)
            if not shown and time.monotonic() - begun > _PATIENCE:
                progress.start()
                shown = True
    finally:
        if shown:
            progress.stop()
