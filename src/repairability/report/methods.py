"""How a method is ordered, coloured and marked: the same in every table, figure and page."""

from __future__ import annotations

from collections.abc import Iterable

# In the house's order. Okabe and Ito's colours, told apart by colour-blind readers and visible on light and dark
# ground; drawing.py has the outlines of the shapes that Vega does not know by name.
STYLES = {
    "global": ("#8a8f98", "square"),
    "uniform": ("#56b4e9", "x"),
    "raw": ("#e69f00", "triangle-up"),
    "residual": ("#cc79a7", "triangle-down"),
    "rr": ("#d55e00", "circle"),
    "erk": ("#0a7cc4", "diamond"),
    "lamp": ("#009e73", "cross"),
}
OTHERS = (("#8c6bb1", "star"), ("#a6761d", "hexagon"), ("#44aa99", "triangle-left"), ("#c2517a", "triangle-right"))


def ordered(rules: Iterable[str]) -> list[str]:
    """Each rule once, known ones in the house's order, the others after them as they came."""
    seen = dict.fromkeys(rules)
    return [rule for rule in STYLES if rule in seen] + [rule for rule in seen if rule not in STYLES]


def styles(rules: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The colour and the shape of each rule, as they came; rules nobody knows share out four more."""
    names = dict.fromkeys(rules)
    others = [name for name in names if name not in STYLES]
    return {name: STYLES.get(name) or OTHERS[others.index(name) % len(OTHERS)] for name in names}
