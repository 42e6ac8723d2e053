"""How values of this package print and travel: Table (plain text, or colour for a terminal), JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text
from typing_extensions import Self

from repairability.errors import InputError, MissingExtraError, RepairabilityError


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

    def rich(self) -> RichTable:
        """The same table for a terminal."""
        table = RichTable(title=self.title or None, caption=self.caption or None, caption_justify="left")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))  # Text: a name such as [a] is a name, not markup
        return table


class Value(ABC):
    """A value on the road: prints as a table, goes to JSON and back. Of a dataclass of plain fields both are known."""

    @abstractmethod
    def table(self) -> Table: ...

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

    __hash__ = None  # type: ignore[assignment]  # values hold mappings

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"this is not JSON: {error}") from error
        with _reading(f"this JSON is not of type {cls.__name__}"):
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
        with _reading(f"these rows hold no {cls.__name__}"):
            return cls.of_rows(rows)

    def to_csv(self) -> str:
        return csv_text(self.rows())

    @classmethod
    def from_csv(cls, text: str) -> Self:
        return cls.from_rows(list(csv.DictReader(io.StringIO(text))))

    def to_frame(self) -> Any:
        """A pandas DataFrame."""
        return frame_of(self.rows())

    @classmethod
    def from_frame(cls, frame: Any) -> Self:
        return cls.from_rows(frame.to_dict("records"))


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Content that is not what it should be becomes one error; ours pass as they are."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, RepairabilityError):
            raise
        raise InputError(f"{what}: {error!r}") from error


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


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as CSV, with the columns of all of them; floats by repr, so that reading them back gives the same bits."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
