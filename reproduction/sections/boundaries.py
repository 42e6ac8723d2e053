"""The section about where each network gives way: its half-way points, rule by rule."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repairability.data import DATA_SETS
from repairability.experiments.record import Record
from repairability.experiments.spec import RunSpec
from repairability.report.estimates import estimates, leaders
from repairability.report.methods import ordered
from repairability.report.sections.accuracy import gap_table, sweeps
from repairability.report.sections.groups import Group, data_name, groups
from repairability.report.sections.section import Section, measured
from repairability.report.tables import short_percent
from repairability.tables import Table

HEAD = ("network", "classes", "dense, %", "half-way, %")
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Crossing:
    """Where accuracies over sparsities first fall through a height: between two points of the sweep, `below` the first
    of them or `above` the last."""

    sparsity: float
    around: tuple[float, ...]
    side: str = ""

    def __str__(self) -> str:
        return f"{self.side} {short_percent(self.sparsity)}" if self.side else f"{100 * self.sparsity:.1f} %"


def boundaries(records: Sequence[Record]) -> Section:
    """Half-way points of every rule on every network, and rr against each other rule."""
    networks = groups(records)
    halfways = [_halfways(group) for group in networks]
    columns = ordered(rule for row in halfways for rule in row)
    rows = [
        (*_dense(group), *(str(row.get(rule, "")) for rule in columns), _best(group) if row else "")
        for group, row in zip(networks, halfways, strict=True)
    ]
    cells = [cell for group in networks for points in estimates(group.report).values() for cell in points.values()]
    caption = (
        "The target sparsity at which the mean accuracy over seeds falls through half-way between dense and chance "
        "(1 / classes), linear between the sparsities of the sweep; 'above' the last of them where it never falls that "
        "far, 'below' the first where it is there already. Best: of the highest mean at each sparsity, and which "
        f"rules have it around the crossing. {measured(cells)}"
    )
    title = "Half-way between dense and chance: the sparsity each rule reaches"
    table = Table((*HEAD, *columns, "best"), rows, title, caption)
    return Section([table, gap_table(networks)], sweeps(networks))


def crossing(points: Mapping[float, float], middle: float) -> Crossing:
    """Where accuracies over sparsities first fall through `middle`, linear between the points."""
    rising = sorted(points)
    if points[rising[0]] < middle:
        return Crossing(rising[0], (rising[0],), "below")
    for s, t in itertools.pairwise(rising):
        if points[t] < middle:
            return Crossing(s + (t - s) * (points[s] - middle) / (points[s] - points[t]), (s, t))
    return Crossing(rising[-1], (rising[-1],), "above")


def classes_of(spec: RunSpec) -> int | None:
    """Of the network's head, or of its data."""
    if spec.num_classes is not None:
        return spec.num_classes
    kind, _, number = spec.data.partition(":")
    if kind == "random" and number.isdigit():
        return int(number)
    known = {"digits": 10} | {data_name(name): about[-1] for name, about in DATA_SETS.items()}
    return known.get(data_name(spec.data))


def _middle(group: Group) -> float | None:
    """Half-way between dense and chance; None where either is unknown."""
    classes, dense = classes_of(group.records[0].spec), group.report.dense
    return None if classes is None or dense is None else (float(dense["top1"]) + 1 / classes) / 2


def _halfways(group: Group) -> dict[str, Crossing]:
    middle = _middle(group)
    if middle is None:
        return {}
    return {
        method.label: crossing({s: point.mean for s, point in points.items()}, middle)
        for method, points in estimates(group.report).items()
    }


def _dense(group: Group) -> tuple[str, str, str, str]:
    middle, dense = _middle(group), group.report.dense
    return (
        group.place,
        str(classes_of(group.records[0].spec) or UNKNOWN),
        UNKNOWN if dense is None else f"{100 * dense['top1']:.2f}",
        UNKNOWN if middle is None else f"{100 * middle:.2f}",
    )


def _best(group: Group) -> str:
    """The half-way point of the highest mean at each sparsity, with the rules that have it on both sides."""
    ranks = {rank.sparsity: rank for rank in leaders(group.report)}
    halfway = crossing({s: rank.estimate.mean for s, rank in ranks.items()}, _middle(group) or 0.0)
    rules = dict.fromkeys(" = ".join(ranks[s].labels) for s in halfway.around)
    return f"{halfway} ({', '.join(rules)})"
