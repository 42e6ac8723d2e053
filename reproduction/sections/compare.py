"""The one layout of ours beside the paper's, and which of a study's runs a table of the paper is about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from repairability.experiments.record import Record
from repairability.experiments.spec import RunSpec
from repairability.report.estimates import Estimate, Row, estimates, over_seeds
from repairability.report.methods import ordered
from repairability.report.sections.groups import Cells, Group, Key, model_name
from repairability.report.sections.section import measured
from repairability.report.tables import cell, plus_minus, short_percent
from repairability.tables import Table
from reproduction.paper import Number

Paper = dict[Key, dict[str, Number]]
"""As `Cells`: row labels -> column -> what the paper prints."""

RESNET18 = "ResNet18"
"""The network of the paper's main tables."""

HEAD = ("data", "sparsity")
KINDS = ("ours", "95 %", "paper", "difference")


def shown(
    records: Sequence[Record], rules: Collection[str] | None = None, where: Callable[[RunSpec], bool] | None = None
) -> list[Record]:
    """The runs of these rules; of them those that the paper has too, as `where` says, or else (a smoke run, another
    network) all.
    """
    ruled = [record for record in records if rules is None or record.spec.rule in rules]
    return [record for record in ruled if where is not None and where(record.spec)] or ruled


def cells(some: Sequence[Group], measure: str = "top1") -> Cells:
    """(place, sparsity) -> rule -> estimate."""
    table: Cells = {}
    for group in some:
        for method, points in estimates(group.report, measure).items():
            for s, point in points.items():
                table.setdefault((group.place, s), {})[method.label] = point
    return table


def beyond_noise(gap: Estimate) -> bool:
    """More than two paired standard errors above 0."""
    return gap.mean > 2 * (gap.standard_error or 0.0)


def label(value: object) -> str:
    """A row's label: a float is a sparsity, several stand with commas, anything else is as it is."""
    if isinstance(value, tuple):
        return ", ".join(map(label, value))
    return short_percent(value) if isinstance(value, float) else str(value)


def tabulated(rows: Iterable[Row], measure: str) -> Cells:
    """Each row's "key" and "column" -> the mean over seeds."""
    table: Cells = {}
    for (key, column), mean in over_seeds(rows, measure, lambda row: (row["key"], row["column"])).items():
        table.setdefault(key, {})[column] = mean
    return table


def of_the_papers_network(records: Sequence[Record]) -> bool:
    """Whether some of the runs are of ResNet18, so that the paper's numbers of it belong beside them."""
    return any(model_name(record.spec.model) == RESNET18 for record in records)


def whose(records: Sequence[Record]) -> str:
    """What a title says where the paper's rows are of ResNet18 and ours may be of another network."""
    return " on ResNet18" if not records or of_the_papers_network(records) else " (the paper's rows: ResNet18)"


def compare(
    title: str,
    head: Sequence[str],
    ours: Cells,
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
    columns = ordered(column for side in (paper, ours) for row in side.values() for column in row)
    every = [estimate for row in ours.values() for estimate in row.values()]
    mark = len({estimate.kind for estimate in every}) > 1
    texts = {
        (key, column): _texts(
            ours.get(key, {}).get(column), paper.get(key, {}).get(column), scale, digits, mark, signed=" - " in column
        )
        for key in keys
        for column in columns
    }
    caption = " ".join(part for part in (note, measured(every, scale, digits, accuracy)) if part)
    if stacked:
        rows = [
            (*map(label, key), kind, *line)
            for key in keys
            for i, kind in enumerate(KINDS)
            if any(line := [texts[key, column][i] for column in columns])
        ]
        return Table((*head, "number", *columns), rows, title, caption)
    used = [(c, i) for c in columns for i in range(len(KINDS)) if any(texts[key, c][i] for key in keys)]
    names = [column if i == 0 else f"{column}, {KINDS[i]}" for column, i in used]
    rows = [(*map(label, key), *(texts[key, column][i] for column, i in used)) for key in keys]
    return Table((*head, *names), rows, title, caption)


def _rows(keys: Sequence[Key]) -> list[Key]:
    """Each row once: places in the order of the paper's, within them sparsities rising, else as they came."""
    places = list(dict.fromkeys(key[0] for key in keys))
    return sorted(dict.fromkeys(keys), key=lambda key: (places.index(key[0]), key[1:2]))


def _texts(
    ours: Estimate | None, paper: Number | None, scale: float, digits: int, mark: bool, *, signed: bool
) -> tuple[str, str, str, str]:
    """The four kinds of one cell; those that are not known are empty."""
    width = None if ours is None else ours.half_width
    return (
        cell(ours, scale, digits, signed=signed, mark=mark),
        "" if width is None else f"±{scale * width:.{digits}f}",
        "" if paper is None else plus_minus(paper.mean, paper.error, 1, digits, signed=signed),
        ""
        if ours is None or paper is None
        else plus_minus(scale * ours.mean - paper.mean, None, 1, digits, signed=True),
    )
