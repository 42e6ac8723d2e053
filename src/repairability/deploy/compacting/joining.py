"""What operations on several tensors do to channels: the fact of their output, or None where it is not known."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import fx

from repairability.deploy.compacting.channels import Fact, Facts
from repairability.deploy.compacting.shaping import Shapes, argument

SUMS = (operator.add, torch.add, "add")
DIFFERENCES = (operator.sub, torch.sub, "sub")
PRODUCTS_OF_TWO = (operator.mul, torch.mul, "mul")
PAIRS = (*SUMS, *DIFFERENCES, *PRODUCTS_OF_TWO)


def pair(node: fx.Node, facts: Facts, shapes: Shapes) -> Fact | None:
    """x + y, x - y, x y: channel by channel, or with a number."""
    if len(node.args) != 2 or node.kwargs:
        return None
    one, two = (facts.given(node, place) for place in (0, 1))
    numbers = [x for x in node.args if isinstance(x, (int, float))]
    apply: Any = operator.add if node.target in SUMS else operator.sub if node.target in DIFFERENCES else operator.mul
    if numbers and (one or two):
        values = [x if isinstance(x, (int, float)) else facts.of[x].value for x in node.args]  # type: ignore[index, union-attr]
        return (one or two).with_value(apply(*values))  # type: ignore[union-attr]
    if one is None or two is None:
        return None
    ranks = [len(shapes[x.name]) for x in node.args if isinstance(x, fx.Node)]
    if one.axis != two.axis or len(one.cells) != len(two.cells) or ranks[0] != ranks[1]:
        return None
    value = apply(one.value, two.value)
    if node.target in PRODUCTS_OF_TWO:
        value = torch.where((one.value == 0) | (two.value == 0), 0.0, value)
    facts.cells.tie(one.cells, two.cells)
    return Fact(one.axis, one.cells, value)


def joined(node: fx.Node, facts: Facts, shapes: Shapes) -> Fact | None:
    """A concatenation: the channels of all parts, one after the other."""
    parts: Any = node.args[0]
    given = [facts.of.get(x) for x in parts] if isinstance(parts, (list, tuple)) else []
    axis = argument(node, 1, "dim", 0) % len(shapes[node.name])
    if not given or any(fact is None or fact.axis != axis for fact in given):
        return None
    known: list[Fact] = [fact for fact in given if fact is not None]
    return Fact(axis, np.concatenate([f.cells for f in known]), torch.cat([f.value for f in known]))
