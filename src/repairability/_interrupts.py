"""Ctrl-C of the command line: raised as ever, and remembered, for a library may swallow it and fail later of what it
left half-done. Nothing heavy is imported here: this listens while everything else is.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from typing import Any

CODE = 130
"""128 + SIGINT: what a shell says of a program that was interrupted."""

_came = threading.Event()


def listen() -> None:
    """From now on. A program that is told to ignore Ctrl-C (in the background of a shell) goes on to do so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _strike)
    sys.unraisablehook = _strike_again


def came() -> bool:
    """Whether an interrupt came: an error behind it is its consequence, whatever it says."""
    return _came.is_set()


def all_done() -> None:
    """All is written and said: an interrupt has nothing left to end, and would only scatter words over the way out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _strike(*_: Any) -> None:
    _came.set()
    raise KeyboardInterrupt


def _strike_again(unraisable: Any) -> None:
    """An interrupt that strikes in a destructor cannot be raised there; it strikes again a moment later."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    again = threading.Timer(0.01, _thread.interrupt_main)
    again.daemon = True
    again.start()
