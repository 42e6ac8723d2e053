"""The standard streams as they come: closed, full, cut off by `head`, or of few letters. Nothing is lost by them but
what they cannot take.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TextIO

from rich.console import Console

from repairability.errors import PlaceError

BROKEN_PIPE = 141
"""128 + SIGPIPE: what a shell says of a program that writes into a pipe which nobody reads any more."""


class Notices(Console):
    """Standard error, with colours on a terminal. Where it takes nothing more, the work goes on without a word."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        """Rich would end the program."""
        silence(sys.stderr)

    def say(self, text: str, style: str | None = None) -> None:
        """One line, word for word."""
        try:
            self.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        except OSError:  # a full disk, a terminal that is gone
            silence(sys.stderr)

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """A word on a terminal while it lasts; elsewhere rich's own would write, too, if only an empty end."""
        with self.status(text) if self.is_terminal else nullcontext():
            yield


def ready() -> None:
    """A stream that is closed swallows what is written to it, and a letter that one does not know becomes "?"."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _occupy(descriptor)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open as long as we run)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _occupy(descriptor: int) -> None:
    """A file that is opened later must not get the number, and with it what C code prints."""
    try:
        os.fstat(descriptor)
    except OSError:
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != descriptor:
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


def answer(text: str) -> None:
    """Write to standard output, to the last letter: where that fails it is said now, not when the program ends."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
        raise SystemExit(BROKEN_PIPE) from None
    except OSError as error:
        silence(sys.stdout)
        raise PlaceError(f"the answer cannot be written to standard output: {error.strerror}") from error


def silence(stream: TextIO) -> None:
    """What is still to be written goes nowhere; else Python would try once more at its end, and complain."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
