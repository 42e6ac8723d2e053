"""`python -m repairability` and the command `repairability`: Ctrl-C ends them in order, also as they begin and end."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from typing import Any


def main() -> None:
    """The command line as a program of its own."""
    sys.unraisablehook = _struck_again
    try:
        try:
            from repairability.cli import main as command_line

            command_line()
        finally:
            _ending()
    except KeyboardInterrupt:
        _ending()
        code = 130
    else:
        code = 0
    raise SystemExit(code)


def _ending() -> None:
    """All is written and said: an interrupt has nothing left to end, and would only scatter words over the way out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _struck_again(unraisable: Any) -> None:
    """An interrupt that strikes in a destructor cannot be raised there; it strikes again a moment later."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    again = threading.Timer(0.01, _thread.interrupt_main)
    again.daemon = True
    again.start()


if __name__ == "__main__":
    main()
