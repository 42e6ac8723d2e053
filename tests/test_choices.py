"""What the benchmarks' arguments may be."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from scripts import loaded

one_of = loaded(Path(__file__).parents[1] / "benchmarks", "choices").one_of


def test_none_some_and_a_misspelt_one(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*", default=["one"], type=one_of({"one": 1, "two": 2}))
    assert parser.parse_args([]).networks == ["one"]
    assert parser.parse_args(["two", "one"]).networks == ["two", "one"]
    with pytest.raises(SystemExit):
        parser.parse_args(["three"])
    assert "'three' is none of one, two" in capsys.readouterr().err
