"""The count of the hostile cases."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "hostile"))

from cases import FOLDER, about, cases_by_kind, collected


def test_cases_are_counted_by_file() -> None:
    names = ["tests/hostile/test_hostile_text.py::a", "tests/hostile/test_hostile_text.py::b[x::y]"]
    table = cases_by_kind([*names, "tests/hostile/test_hostile_words.py::c"])
    assert [row[1:] for row in table.rows] == [("test_hostile_text.py", "2"), ("test_hostile_words.py", "1"), ("", "3")]
    assert table.rows[0][0].startswith("Text is UTF-8")


def test_each_file_says_what_it_tries() -> None:
    files = sorted(FOLDER.glob("test_*.py"))
    assert len(files) > 10
    assert len({about(file) for file in files}) == len(files)


@pytest.mark.slow
def test_as_many_as_were_promised() -> None:
    names = collected()
    assert len(names) == len(set(names)) >= 300
    assert {Path(name.partition("::")[0]).name for name in names} == {file.name for file in FOLDER.glob("test_*.py")}
