"""The section about where each network gives way: its half-way points, rule by rule."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from repairability.data import DATA_SETS
from repairability.experiments.spec import RunSpec
from repairability.experiments.store import Record
from repairability.report.estimates import estimates, leaders
from repairability.report.methods import ordered
from repairability.report.tables import short_percent
from repairability.tables import Table
from reproduction.sections.accuracies import drawn
from reproduction.sections.gaps import gap_table
from reproduction.sections.groups import Group, data_name, groups
from reproduction.sections.section import Section, measured

HEAD = ("network", "classes", "dense, %", "half-way, %")


def boundaries(records: Sequence[Record]) -> Section:
    """Half-way points of every rule on every network, and rr against each other rule."""
    found = groups(records)
    rows = [(group, _halfways(group)) for group in found]
    columns = ordered(rule for _, row in rows for rule in row)
    lines = [
        (*_dense(group), *(row.get(rule, "") for rule in columns), _best(group) if row else "") for group, row in rows
    ]
    every = [each for group in found for points in estimates(group.report).values() for each in points.values()]
    caption = (
        "The target sparsity at which the mean accuracy over seeds falls through half-way between dense and chance "
        "(1 / classes), linear between the sparsities of the sweep; 'above' the last of them where it never falls that "
        "far, 'below' the first where it is there already. Best: of the highest mean at each sparsity, and which "
        f"rules have it around the crossing. {measured(every)}"
    )
    title = "Half-way between dense and chance: the sparsity each rule reaches"
    table = Table((*HEAD, *columns, "best"), lines, title, caption)
    return Section([table, gap_table(found)], drawn("sweep", found))


def halfway(points: Mapping[float, float], middle: float) -> str:
    """Where accuracies over sparsities first fall through `middle`."""
    around = crossing(points, middle)
    if len(around) == 1:
        return f"{'below' if points[around[0]] < middle else 'above'} {short_percent(around[0])}"
    s, t = around
    return f"{100 * (s + (t - s) * (points[s] - middle) / (points[s] - points[t])):.1f} %"


def crossing(points: Mapping[float, float], middle: float) -> tuple[float, ...]:
    """The sparsities on both sides; the first alone where the fall came before it, the last where it never comes."""
    rising = sorted(points)
    if points[rising[0]] < middle:
        return (rising[0],)
    for pair in itertools.pairwise(rising):
        if points[pair[1]] < middle:
            return pair
    return (rising[-1],)


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


def _halfways(group: Group) -> dict[str, str]:
    middle = _middle(group)
    if middle is None:
        return {}
    return {
        method.label: halfway({s: each.mean for s, each in points.items()}, middle)
        for method, points in estimates(group.report).items()
    }


def _dense(group: Group) -> tuple[str, str, str, str]:
    middle, dense = _middle(group), group.report.dense
    return (
        group.place,
        str(classes_of(group.records[0].spec) or "unknown"),
        "unknown" if dense is None else f"{100 * dense['top1']:.2f}",
        "unknown" if middle is None else f"{100 * middle:.2f}",
    )


def _best(group: Group) -> str:
    """The half-way point of the highest mean at each sparsity, with the rules that have it on both sides."""
    middle, ranks = _middle(group) or 0.0, leaders(group.report)
    heights = {leader.sparsity: leader.estimate.mean for leader in ranks}
    rules = {leader.sparsity: " = ".join(leader.labels) for leader in ranks}
    around = dict.fromkeys(rules[s] for s in crossing(heights, middle))
    return f"{halfway(heights, middle)} ({', '.join(around)})"
