"""How many hostile cases there are of each kind, as pytest collects them: `python tests/hostile/cases.py`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from repairability.tables import Table

FOLDER = Path(__file__).parent


def collected() -> list[str]:
    """The names of all cases; none is run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-n", "0", str(FOLDER)]
    done = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True, encoding="utf-8", check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


def cases_by_kind(names: Iterable[str]) -> Table:
    """A line for each file, with the words that it begins with, and how many of the cases are its own."""
    counts = Counter(Path(name.partition("::")[0]).name for name in names)
    rows = [(about(FOLDER / file), file, f"{count:,}") for file, count in sorted(counts.items())]
    return Table(("what is tried", "file", "cases"), [*rows, ("in all", "", f"{counts.total():,}")])


def about(file: Path) -> str:
    """The one line that a file of cases begins with."""
    words = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    assert len(words.splitlines()) == 1, f"{file.name} begins with one line that says what it tries"
    return words


if __name__ == "__main__":
    print(cases_by_kind(collected()))
