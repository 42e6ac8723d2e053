"""The paper's own tables, carried unchanged in `paper_tables/`, and how to read their cells."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from repairability.errors import InputError, unknown
from repairability.transition import Interval

FOLDER = Path(__file__).parent / "paper_tables"

RULES = {
    "Global": "global",
    "Uniform": "uniform",
    "Raw Shift": "raw",
    "Raw": "raw",
    "Repair Residual": "residual",
    "Repair Res.": "residual",
    "RR": "rr",
    "ERK": "erk",
    "LAMP": "lamp",
}
"""The paper's columns and our rules."""


@dataclass(frozen=True)
class Number:
    """As printed: in per cent where the paper prints per cent."""

    mean: float
    error: float | None = None


@cache
def paper_table(name: str) -> list[dict[str, str]]:
    """The rows of one table, such as "main_results"; every cell is text."""
    file = FOLDER / f"{name}.csv"
    if not file.is_file():
        raise unknown("table of the paper", name, [each.stem for each in FOLDER.glob("*.csv")])
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def number(text: str) -> Number | None:
    """'17.68 ± 0.35', '17.68±0.35', '+1.12', '95%'; None of an empty cell."""
    parts = [part.strip().removesuffix("%") for part in text.split("±")]
    if parts == [""]:
        return None
    try:
        mean, *error = map(float, parts)
    except ValueError as problem:
        raise InputError(f"{text!r} is no number of the paper's tables") from problem
    return Number(mean, error[0] if error else None)


def share(text: str) -> float:
    """A sparsity: '95.5%' -> 0.955."""
    found = number(text)
    if found is None:
        raise InputError("an empty cell is no sparsity")
    return round(found.mean / 100, 6)


def interval(text: str) -> Interval | None:
    """'95.0-95.5%' -> (0.95, 0.955), '97.0%' -> (0.97, 0.97); None of 'not detected'."""
    found = re.fullmatch(r"([\d.]+)(?:-([\d.]+))?%", text.strip())
    if found is None:
        return None
    low, high = found[1], found[2] or found[1]
    return share(low), share(high)


def by_rule(row: dict[str, str]) -> dict[str, Number]:
    """The cells of a row that are a rule's, by our names; empty ones left out."""
    found = {RULES[column]: number(text) for column, text in row.items() if column in RULES}
    return {rule: each for rule, each in found.items() if each is not None}
