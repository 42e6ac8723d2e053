"""The paper's own tables, carried unchanged in `paper_tables/`, and how to read their cells."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
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

Row = Mapping[str, str]


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
        raise unknown("table of the paper", name, [table.stem for table in FOLDER.glob("*.csv")])
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
    printed = number(text)
    if printed is None:
        raise InputError("an empty cell is no sparsity")
    return round(printed.mean / 100, 6)


def interval(text: str) -> Interval | None:
    """'95.0-95.5%' -> (0.95, 0.955), '97.0%' -> (0.97, 0.97); None of 'not detected'."""
    bounds = re.fullmatch(r"([\d.]+)(?:-([\d.]+))?%", text.strip())
    return None if bounds is None else (share(bounds[1]), share(bounds[2] or bounds[1]))


def quantity(text: str) -> tuple[float, str]:
    """A number and its unit: '7.23 min' -> (7.23, 'min'), '128' -> (128.0, '')."""
    value, _, unit = text.partition(" ")
    return float(value), unit


def numbers(row: Row, columns: Mapping[str, str]) -> dict[str, Number]:
    """Our name -> what stands in the paper's column; empty cells left out."""
    cells = {name: number(row[column]) for name, column in columns.items()}
    return {name: cell for name, cell in cells.items() if cell is not None}


def by_rule(row: Row) -> dict[str, Number]:
    """The cells of a row that are a rule's, by our names; empty ones left out."""
    return numbers(row, {RULES[column]: column for column in row if column in RULES})


def setting(row: Row) -> tuple[str, float]:
    """Data set and sparsity of a row, from 'CIFAR100 95%' or from two columns; a sweep without a data set is of
    CIFAR100."""
    if "Setting" in row:
        data, text = row["Setting"].split()
        return data, share(text)
    (column,) = [name for name in ("Sparsity", "Target", "Target sparsity", "Sp.") if name in row]
    return row.get("Dataset", "CIFAR100"), share(row[column])
