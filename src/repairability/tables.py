"""How values of this package print and travel: Table (plain text, or colour for a terminal), JSON and CSV."""

from __future__ import annotations

import csv
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from rich.table import Table as RichTable
from rich.text import Text
from typing_extensions import Self

from repairability._html import view
from repairability._json import read_json, strict_json
from repairability.errors import InputError, MissingExtraError, RepairabilityError, first_twice, shortened


@dataclass(frozen=True)
class Table:
    """Columns and rows of finished strings. The first column is text; the others align right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""

    def __str__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]

        def aligned(line: Sequence[str]) -> str:
            first, *others = (
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            return "  ".join([first, *others]).rstrip()

        body = [aligned(self.columns), "  ".join("-" * width for width in widths), *map(aligned, self.rows)]
        return "\n".join([*([self.title] if self.title else []), *body, *([self.caption] if self.caption else [])])

    def _repr_html_(self) -> str:
        """The same table for a notebook."""
        return view([], [self])

    def rich(self) -> RichTable:
        """The same table for a terminal."""
        table = RichTable(title=self.title or None, caption=self.caption or None, caption_justify="left")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))  # Text: a name such as [a] is a name, not markup
        return table


class Value(ABC):
    """A value on the road: prints as a table, in a notebook with charts, goes to JSON and back. Of a dataclass of plain
    fields both are known.
    """

    @abstractmethod
    def table(self) -> Table: ...

    def charts(self) -> list[str]:
        """What can be drawn of it: figures of HTML, with SVG in them."""
        return []

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return view(self.charts(), [self.table()])

    def to_dict(self) -> dict[str, Any]:
        """Plain objects only; `from_dict` reads them back."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{field.name: data[field.name] for field in fields(cls)})  # type: ignore[arg-type]

    def __str__(self) -> str:
        return str(self.table())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Value) and self.to_dict() == other.to_dict()

    __hash__: ClassVar[None]  # type: ignore[assignment]  # values hold mappings

    def to_json(self) -> str:
        return strict_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = read_json(text)
        with reading(f"this JSON is not of type {cls.__name__}"):
            return cls.from_dict(data)


class Tidy(Value):
    """A value that is also rows of one shape: for CSV, for pandas, and back."""

    @abstractmethod
    def rows(self) -> list[dict[str, object]]: ...

    @classmethod
    @abstractmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Self:
        """From at least one row, whose cells may be text."""

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Self:
        if not rows:
            raise InputError(f"these rows hold no {cls.__name__}: there are none")
        with reading(f"these rows hold no {cls.__name__}"):
            return cls.of_rows(rows)

    def to_csv(self) -> str:
        return csv_text(self.rows())

    @classmethod
    def from_csv(cls, text: str) -> Self:
        return cls.from_rows(read_csv(text))

    def to_frame(self) -> Any:
        """A pandas DataFrame."""
        return frame_of(self.rows())

    @classmethod
    def from_frame(cls, frame: Any) -> Self:
        return cls.from_rows(frame.to_dict("records"))


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Content that is not what it should be becomes one error; ours pass as they are."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        if isinstance(error, RepairabilityError):
            raise
        raise InputError(f"{what}: {shortened(error)}") from error


def frame_of(rows: Sequence[Mapping[str, object]]) -> Any:
    """Rows as a pandas DataFrame: the one import of pandas."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingExtraError("pandas", "report") from error
    return pandas.DataFrame(list(rows))


def percent(sparsity: float) -> str:
    """A sparsity as people write it: 0.95 -> '95.00 %'."""
    return f"{100 * sparsity:.2f} %"


_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
"""How a text begins that a spreadsheet would reckon with, or that we have put an apostrophe before."""

_FIGURE = re.compile(r"[+-][\d.,\s±%*]*(e[+-]?\d+)?")
"""A figure as tables print it: it names no cell and no function."""


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as CSV, with the columns of all of them; floats by repr, so that reading them back gives the same bits. A
    text that a spreadsheet would take for a formula has an apostrophe before it; `read_csv` takes it off.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines: list[list[object]] = [[*columns], *([row.get(column, "") for column in columns] for row in rows)]
    return "".join(f"{_csv_line(line)}\n" for line in lines)


def _csv_line(cells: Sequence[object]) -> str:
    """Without its end; the module quotes a cell with any character of the end that it writes itself."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\r\n").writerow([_neutral(cell) for cell in cells])
    return out.getvalue().removesuffix("\r\n")


def read_csv(text: str) -> list[dict[str, str]]:
    """The rows of a CSV, every cell a text; a ragged row, and a column that comes twice, are refused."""
    try:
        lines = [line for line in csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline="")) if line]
    except csv.Error as error:
        raise InputError(f"this is not CSV: {error}") from error
    columns, *cells = [[_as_it_was(cell) for cell in line] for line in lines] or [[]]
    if (twice := first_twice(columns)) is not None:
        raise InputError(f"this CSV has the column {shortened(twice)} twice")
    for number, row in enumerate(cells, 1):
        if len(row) != len(columns):
            raise InputError(f"row {number} of this CSV has {len(row)} cells for {len(columns)} columns")
    return [dict(zip(columns, row, strict=True)) for row in cells]


def _neutral(cell: object) -> object:
    formula = isinstance(cell, str) and _FORMULA.match(cell) and not _FIGURE.fullmatch(cell)
    return f"'{cell}" if formula else cell


def _as_it_was(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
