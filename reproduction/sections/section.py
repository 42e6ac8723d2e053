"""Section: what a study prints; and the one layout of ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repairability.report.estimates import Estimate, how_measured
from repairability.report.methods import ordered
from repairability.tables import Table
from reproduction.paper import Number

if TYPE_CHECKING:
    from altair import LayerChart

Key = tuple[str, ...]
Ours = dict[Key, dict[str, Estimate]]
Paper = dict[Key, dict[str, Number]]
"""Row labels -> column -> what stands there."""

Draw = Callable[[], "LayerChart | None"]
"""A figure that is drawn when somebody wants it: printing tables needs no altair."""

KINDS = ("ours", "95 %", "paper", "difference")


@dataclass(frozen=True)
class Section:
    """The tables of a study, and its figures by name."""

    tables: Sequence[Table]
    figures: Mapping[str, Draw] = field(default_factory=dict)


def compare(
    title: str,
    head: Sequence[str],
    ours: Ours,
    paper: Paper,
    *,
    note: str = "",
    scale: float = 100,
    digits: int = 2,
    stacked: bool = False,
    accuracy: bool = True,
) -> Table:
    """Ours, its 95 % half-width, the paper's number and the difference, over the union of both sides' rows and columns.

    `scale` brings ours to the paper's unit. `stacked`: one line per kind, for tables of many columns; else the kinds
    stand side by side. `accuracy`: the cells come from test images, and the caption says how many.
    """
    keys = _rows([*paper, *ours])
    columns = ordered(column for side in (paper, ours) for each in side.values() for column in each)
    every = [found for each in ours.values() for found in each.values()]
    mark = len({found.kind for found in every}) > 1
    cells = {
        (key, column): _texts(
            ours.get(key, {}).get(column), paper.get(key, {}).get(column), scale, digits, mark, signed=" - " in column
        )
        for key in keys
        for column in columns
    }
    caption = " ".join(part for part in (note, measured(every, scale, digits, accuracy)) if part)
    if stacked:
        rows = [
            (*key, kind, *line)
            for key in keys
            for i, kind in enumerate(KINDS)
            if any(line := [cells[key, column][i] for column in columns])
        ]
        return Table((*head, "number", *columns), rows, title, caption)
    used = [(c, i) for c in columns for i in range(len(KINDS)) if any(cells[key, c][i] for key in keys)]
    names = [column if i == 0 else f"{column}, {KINDS[i]}" for column, i in used]
    rows = [(*key, *(cells[key, column][i] for column, i in used)) for key in keys]
    return Table((*head, *names), rows, title, caption)


def _rows(keys: Sequence[Key]) -> list[Key]:
    """Each row once: places in the order of the paper's, within them sparsities rising, else as they came."""
    places = list(dict.fromkeys(key[0] for key in keys))

    def order(key: Key) -> tuple[int, float]:
        rising = len(key) > 1 and key[1].endswith(" %")
        return places.index(key[0]), float(key[1].removesuffix(" %")) if rising else 0.0

    return sorted(dict.fromkeys(keys), key=order)


def _texts(
    ours: Estimate | None, paper: Number | None, scale: float, digits: int, mark: bool, *, signed: bool
) -> tuple[str, str, str, str]:
    """The four kinds of one cell; those that are not known are empty."""
    plus = "+" if signed else ""
    mine = width = theirs = difference = ""
    if ours is not None:
        error = "" if ours.error is None else f" ± {scale * ours.error:.{digits}f}"
        mine = f"{scale * ours.mean:{plus}.{digits}f}{error}{'*' if mark and ours.seeds == 1 else ''}"
        width = "" if ours.half_width is None else f"±{scale * ours.half_width:.{digits}f}"
    if paper is not None:
        theirs = f"{paper.mean:{plus}.{digits}f}" + ("" if paper.error is None else f" ± {paper.error:.{digits}f}")
    if ours is not None and paper is not None:
        difference = f"{round(scale * ours.mean - paper.mean, digits) + 0.0:+.{digits}f}"  # no negative zero
    return mine, width, theirs, difference


def measured(every: Sequence[Estimate], scale: float = 100, digits: int = 2, accuracy: bool = True) -> str:
    """Seeds, images and noise of these cells, in words."""
    if not every:
        return "No runs of ours."
    words = f"Ours: {how_measured(every, 'these cells')}"
    if accuracy:
        sizes = sorted({each.n for each in every})
        n = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        words += f"; n = {n} test images"
        words += f" (an accuracy on {sizes[0]:,} is itself known to ±{98 / sizes[0] ** 0.5:.2f} at worst)"
    widths = [each.half_width for each in every if each.half_width is not None]
    if widths:
        kinds = {each.kind for each in every if each.half_width is not None}
        how = " or ".join(
            text
            for kind, text in (("std", "Student's t over seeds"), ("binomial", "binomial, of one seed"))
            if kind in kinds
        )
        words += f"; 95 %: half-width of the interval ({how}), at most {scale * max(widths):.{digits}f}"
    return f"{words}."
