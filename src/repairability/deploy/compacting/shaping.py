"""What operations that move numbers about do to channels: the fact of their output, or None where it is not known."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from repairability.deploy.compacting.channels import Cells, Fact

Shapes = dict[str, tuple[int, ...]]
"""Of each node of a graph, by its name."""


def argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def shape_in(node: fx.Node, shapes: Shapes) -> tuple[int, ...]:
    """Of what goes into it."""
    first = node.args[0]
    assert isinstance(first, fx.Node)
    return shapes[first.name]


def zeros_only(fact: Fact) -> Fact:
    """Padded with zeros: no other value stays one."""
    return Fact(fact.axis, fact.cells, torch.where(fact.value == 0, fact.value, torch.nan))


def flattened(node: fx.Node, given: Fact, shapes: Shapes) -> Fact | None:
    """[N, C, ...] -> [N, C P]: a channel becomes P neighbours."""
    before, after = shape_in(node, shapes), shapes[node.name]
    if given.axis != 1 or after != (before[0], int(np.prod(before[1:]))):
        return None
    positions = int(np.prod(before[2:]))
    return Fact(1, np.repeat(given.cells, positions), given.value.repeat_interleave(positions))


def mean(node: fx.Node, given: Fact, shapes: Shapes) -> Fact | None:
    axes, keep = argument(node, 1, "dim", None), argument(node, 2, "keepdim", False)
    if axes is None or set(node.kwargs) - {"dim", "keepdim"}:
        return None
    rank = len(shape_in(node, shapes))
    gone = {axis % rank for axis in ([axes] if isinstance(axes, int) else axes)}
    if given.axis in gone:
        return None
    return Fact(given.axis - (0 if keep else sum(axis < given.axis for axis in gone)), given.cells, given.value)


def turned(node: fx.Node, given: Fact, shapes: Shapes) -> Fact | None:
    rank, rest = len(shapes[node.name]), list(node.args[1:])
    axes: Any = rest[0] if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else rest
    if node.kwargs or not all(isinstance(axis, int) for axis in axes):
        return None
    order = list(range(rank))
    if node.target in (torch.transpose, "transpose"):
        a, b = (axis % rank for axis in axes)
        order[a], order[b] = order[b], order[a]
    else:
        order = [axis % rank for axis in axes]
    return Fact(order.index(given.axis), given.cells, given.value)


def slice_(node: fx.Node, given: Fact) -> Fact | None:
    """Every second pixel: all channels, and no axis goes."""
    index = node.args[1]
    if not isinstance(index, tuple) or not all(isinstance(part, slice) for part in index):
        return None
    whole = len(index) <= given.axis or index[given.axis] == slice(None)
    return given if whole else None


def padded(node: fx.Node, given: Fact, shapes: Shapes, made: Cells) -> Fact | None:
    """Zeros around the map; those around the channels are channels of zeros."""
    pads, mode = argument(node, 1, "pad", ()), argument(node, 2, "mode", "constant")
    if mode != "constant" or argument(node, 3, "value", None) or not all(isinstance(x, int) for x in pads):
        return None
    rank = len(shapes[node.name])
    place = 2 * (rank - 1 - given.axis)  # pads begin at the last axis
    if len(pads) > place + 2 or min(pads) < 0:
        return None
    before, after = pads[place : place + 2] if len(pads) > place else (0, 0)
    inner = given if not any(pads[:place]) else zeros_only(given)
    cells = [made.new(before), inner.cells, made.new(after)]
    zeros = [torch.zeros(x, dtype=torch.float64) for x in (before, after)]
    return Fact(given.axis, np.concatenate(cells), torch.cat([zeros[0], inner.value, zeros[1]]))
