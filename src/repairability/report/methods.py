"""How a method is ordered, coloured and marked: the same in every table, figure and page."""

from __future__ import annotations

from collections.abc import Iterable

ORDER = ("global", "uniform", "raw", "residual", "rr", "erk", "lamp")

# Okabe and Ito's colours, told apart by colour-blind readers and visible on light and dark ground.
COLOURS = {
    "global": "#8a8f98",
    "uniform": "#56b4e9",
    "raw": "#e69f00",
    "residual": "#cc79a7",
    "rr": "#d55e00",
    "erk": "#0a7cc4",
    "lamp": "#009e73",
}
OTHER_COLOURS = ("#8c6bb1", "#a6761d", "#44aa99", "#c2517a")
OTHER_MARKS = ("star", "hexagon", "triangle-left", "triangle-right")

# One shape per rule; drawing.py has the outlines of those that Vega does not know by name.
MARKS = {
    "global": "square",
    "uniform": "x",
    "raw": "triangle-up",
    "residual": "triangle-down",
    "rr": "circle",
    "erk": "diamond",
    "lamp": "cross",
}


def ordered(rules: Iterable[str]) -> list[str]:
    """Each rule once, known ones in the house's order, the others after them as they came."""
    seen = list(dict.fromkeys(rules))
    return [rule for rule in ORDER if rule in seen] + [rule for rule in seen if rule not in ORDER]


def colours(rules: Iterable[str]) -> dict[str, str]:
    """The colour of each rule; rules nobody knows share out four more."""
    return _shared_out(rules, COLOURS, OTHER_COLOURS)


def marks(rules: Iterable[str]) -> dict[str, str]:
    """The shape of each rule's points."""
    return _shared_out(rules, MARKS, OTHER_MARKS)


def _shared_out(rules: Iterable[str], known: dict[str, str], spare: tuple[str, ...]) -> dict[str, str]:
    names = ordered(rules)
    others = [name for name in names if name not in known]
    return {name: known[name] if name in known else spare[others.index(name) % len(spare)] for name in names}
