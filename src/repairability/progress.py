"""Progress on anything that may take longer than two seconds; silent unless standard error is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")
_PATIENCE = 2.0  # seconds without a bar


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items, with a bar from the third second on; the bar goes away at the end."""
    if not _watched():
        yield from items
        return
    bar = _bar()
    task = bar.add_task(description, total=total, state="")
    begun, shown = time.monotonic(), False
    try:
        for item in items:
            yield item
            bar.advance(task)
            if not shown and time.monotonic() - begun > _PATIENCE:
                bar.start()
                shown = True
    finally:
        if shown:
            bar.stop()


@contextmanager
def live(description: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar that is told how far things are: done, total, and a few words."""
    if not _watched():
        yield lambda done, total, words: None
        return
    with _bar() as bar:
        task = bar.add_task(description, total=None, state="")
        yield lambda done, total, words: bar.update(task, completed=done, total=total, state=words)


def _watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # None: closed from the start


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words, state = TextColumn("{task.description}"), TextColumn("{task.fields[state]}")
    columns = (words, BarColumn(), MofNCompleteColumn(), state, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
