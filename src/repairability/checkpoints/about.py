"""FileInfo: what a file holds and what it takes, layer by layer; no model is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repairability.checkpoints.sparse import Row
from repairability.tables import Table, percent

_TOLD = ("recipe", "rule", "score", "repair", "target", "sparsity", "global_sparsity", "calibration", "versions")


@dataclass(frozen=True)
class FileInfo:
    """Bytes and zeros of a file, against what its tensors take as they are, and against the bound."""

    path: str
    format: str
    size: int  # bytes of the file
    header: Mapping[str, Any]
    rows: tuple[Row, ...]

    @property
    def dense_bytes(self) -> int:
        """What the tensors take with their zeros."""
        return sum(row.dense_bytes for row in self.rows)

    @property
    def ratio(self) -> float:
        return self.dense_bytes / self.size

    @property
    def bound(self) -> float:
        """n H(p) bits for the positions of each tensor, as any choice of so many takes, and the bytes of its values."""
        return sum(row.bound for row in self.rows)

    @property
    def above(self) -> float:
        """By which share of the bound the file is longer, its header included."""
        return self.size / max(1.0, self.bound) - 1

    @property
    def values(self) -> str:
        """The type that the weights are stored in; several with commas between."""
        weights = [row for row in self.rows if len(row.shape) > 1 and row.count] or self.rows
        return ", ".join(sorted({row.values for row in weights if "float" in row.dtype}))

    @property
    def rounded(self) -> str | None:
        """The types that they were rounded to, in this file or in one that it was made of; None: they are exact."""
        told = self.header.get("rounded", {}).get("values")
        return None if told is None else str(told)

    @property
    def error(self) -> float:
        """Of rounded values: the largest, relative to the largest value of its filter; 0 where they are exact."""
        return float(self.header.get("rounded", {}).get("error", 0.0))

    @property
    def rounding(self) -> str:
        """What is stored, and what rounding did to it, in words; empty where values are exact."""
        if not self.error:
            return ""
        once = "" if self.rounded == self.values else f" (once rounded to {self.rounded})"
        return f"values {self.values}{once}: largest error {percent(self.error)} of its filter's largest weight"

    def table(self) -> Table:
        """Of the layers that were pruned; what else there is stands in one row."""
        pruned = [row for row in self.rows if row.count < row.total and len(row.shape) > 1]
        others = [row for row in self.rows if row not in pruned]
        lines = [
            (
                row.name,
                f"{row.count:,}",
                f"{row.total:,}",
                f"{1 - row.count / row.total:.4f}",
                *_bytes([row]),
                row.coding,
            )
            for row in pruned
        ]
        kept, total = (sum(x) for x in zip(*((r.count, r.total) for r in others), strict=True)) if others else (0, 0)
        if others:
            lines.append((f"{len(others)} others", f"{kept:,}", f"{total:,}", "", *_bytes(others), ""))
        return Table(
            ("tensor", "kept", "total", "sparsity", "bytes", "bound", "positions"), lines, caption=self.summary()
        )

    def summary(self) -> str:
        rounded = f", {self.rounding}" if self.rounding else ""
        told = self.header.get("sparsity")
        lines = [
            f"{self.path}: {self.format}, {self.size:,} bytes; the tensors with their zeros {self.dense_bytes:,} "
            f"({self.ratio:.2f} times){rounded}",
            f"entropy bound {self.bound:,.0f} bytes; the file is {percent(self.above)} above it",
        ]
        if told is not None:
            words = f"{self.header.get('recipe') or 'recipe not said'}"
            lines.append(f"{percent(told)} of the prunable weights are zero ({words})")
        return "\n".join(lines)

    def __str__(self) -> str:
        return str(self.table())

    def figures(self) -> dict[str, Any]:
        """Plain objects, without the tensors."""
        names = ("path", "format", "size", "dense_bytes", "ratio", "bound", "above", "values", "rounded", "error")
        return {name: getattr(self, name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Plain objects: what `--json` prints."""
        told = {key: self.header.get(key) for key in _TOLD}
        tensors = [{**row.to_dict(), "bytes": row.bytes, "bound": row.bound} for row in self.rows]
        return {**self.figures(), **told, "tensors": tensors}


def _bytes(rows: list[Row]) -> tuple[str, str]:
    return f"{sum(row.bytes for row in rows):,}", f"{sum(row.bound for row in rows):,.0f}"
