"""How long the front door takes to open: `--help` of the command line and of every verb, beside an empty Python.

    python benchmarks/front_door.py

Prints seconds by the clock (the best of five processes) and their ratio to `python -c pass`.
"""

from __future__ import annotations

import subprocess
import sys

from timing import machine, seconds

from repairability.cli import VERBS
from repairability.tables import Table

LIMIT = 0.5
"""Seconds within which every one should open."""


def opened(*arguments: str) -> float:
    """Seconds of a whole process."""
    command = [sys.executable, *arguments]
    return seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def main() -> None:
    empty = opened("-c", "pass")
    taken = {"import repairability": opened("-c", "import repairability")}
    taken |= {f"{verb} --help".strip(): opened("-m", "repairability", *verb.split(), "--help") for verb in ("", *VERBS)}
    rows = [("python -c pass", f"{empty:.3f}", "1.0", "")]
    rows += [(name, f"{time:.3f}", f"{time / empty:.1f}", f"{LIMIT:g}") for name, time in taken.items()]
    print(Table(("what", "seconds", "ratio", "at most"), rows, title=machine()))


if __name__ == "__main__":
    main()
