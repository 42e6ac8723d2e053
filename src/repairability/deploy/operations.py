"""What each operation of a traced network does to channels: `fact_of` a node, from the facts of what goes into it."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from repairability.deploy.channels import (
    NORMS,
    PRODUCTS,
    Fact,
    Facts,
    Product,
    cuttable,
    no_borders,
    norm_value,
    product_value,
    unknown,
)

Shapes = dict[str, tuple[int, ...]]

ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.SiLU, nn.GELU, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Sigmoid),
    *(nn.Tanh, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Mish, nn.LogSigmoid, nn.Identity),
)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
STEADY_POOLS = (
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.Upsample),
)
"""A channel of one value keeps it: maxima are padded with -inf."""

AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
SAME_NAMES = {
    *("relu", "relu6", "silu", "gelu", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "elu", "sigmoid", "tanh"),
    *("mish", "softplus", "clamp", "contiguous", "clone", "detach", "neg"),
}
"""Functions and methods that work on each number by itself."""

SUMS = (operator.add, torch.add, "add")
DIFFERENCES = (operator.sub, torch.sub, "sub")
PRODUCTS_OF_TWO = (operator.mul, torch.mul, "mul")
PAIRS = (*SUMS, *DIFFERENCES, *PRODUCTS_OF_TWO)
IN_PLACE = {operator.iadd: operator.add, operator.imul: operator.mul, operator.isub: operator.sub}
FRESH = (*PRODUCTS, *NORMS, nn.MaxPool2d, nn.AvgPool2d)
"""Modules whose output shares no memory with their input."""

FLATTENS = (torch.flatten, "flatten")
RESHAPES = (torch.reshape, "reshape", "view")
STEADY_FUNCTIONS = (F.adaptive_avg_pool2d, F.adaptive_max_pool2d, F.max_pool2d, F.adaptive_avg_pool1d, F.interpolate)


class Reading:
    """One walk along a graph, from inputs to outputs."""

    def __init__(self, graph: fx.GraphModule, shapes: Shapes, calls: Counter[str]) -> None:
        self.graph, self.shapes, self.calls = graph, shapes, calls
        self.facts = Facts()
        written = {base for node in graph.graph.nodes if writes(graph, node) for base in bases(graph, node)}
        for node in graph.graph.nodes:
            self.facts.of[node] = None if node in written else self._fact(node)
            if node in written:
                self._leave(node)

    def _fact(self, node: fx.Node) -> Fact | None:
        if node.op == "call_module":
            found = self._module(node, self.graph.get_submodule(str(node.target)))
        elif node.op in ("call_function", "call_method"):
            found = self._function(node)
        elif node.op == "get_attr" and str(node.target).startswith(CONSTANT):
            value = getattr(self.graph, str(node.target)).detach().double().flatten()
            return Fact(1, self.facts.cells.new(len(value)), value)
        else:
            found = None
        if found is None:
            self._leave(node)
        return None if found is HARMLESS else found

    def _leave(self, node: fx.Node) -> None:
        """Not known: what goes into it stays as it is."""
        given = [x for x in node.all_input_nodes if self.facts.of.get(x) is not None]
        if given and node.op not in ("output", "placeholder"):
            kind = node.target if node.op == "call_method" else getattr(node.target, "__name__", node.target)
            if node.op == "call_module":
                kind = type(self.graph.get_submodule(str(node.target))).__name__
            self.facts.opaque[str(kind)] += 1
        self.facts.pin(given)

    def _given(self, node: fx.Node, place: int = 0) -> Fact | None:
        argument = node.args[place] if len(node.args) > place else None
        return self.facts.of.get(argument) if isinstance(argument, fx.Node) else None

    def _shape_in(self, node: fx.Node) -> tuple[int, ...]:
        first = node.args[0]
        assert isinstance(first, fx.Node)
        return self.shapes[first.name]

    # --- modules ------------------------------------------------------------------------------------------------------

    def _module(self, node: fx.Node, module: nn.Module) -> Fact | None:
        given = self._given(node)
        name = str(node.target)
        if isinstance(module, (*PRODUCTS, *NORMS)):
            why = cuttable(name, module, self.graph, self.calls) or ("called in another way" if node.kwargs else "")
            if why:
                self.facts.left[name] = why
                return None
            return self._product(node, module, given) if isinstance(module, PRODUCTS) else self._norm(module, given)
        if given is None:
            return None
        if type(module) in DROPOUTS and not module.training:
            return given
        if type(module) in ELEMENTWISE:
            return given.with_value(module(given.value.clone()))
        if type(module) in STEADY_POOLS:
            return given if given.axis == 1 and not getattr(module, "return_indices", False) else None
        if type(module) in AVERAGES and given.axis == 1:
            padded: Any = module.padding
            plain = not np.any(padded) or not module.count_include_pad
            return given if plain and not getattr(module, "divisor_override", None) else _zeros_only(given)
        if type(module) is nn.Flatten:
            return self._flattened(node, given) if (module.start_dim, module.end_dim) == (1, -1) else None
        return None

    def _product(self, node: fx.Node, module: nn.Module, given: Fact | None) -> Fact | None:
        cells, name = self.facts.cells, str(node.target)
        weight: Tensor = module.weight  # type: ignore[assignment]
        axis = len(self.shapes[node.name]) - 1 if isinstance(module, nn.Linear) else 1
        bias: Tensor | None = module.bias  # type: ignore[assignment]
        groups: int = getattr(module, "groups", 1)
        if given is not None and given.axis != axis:
            return None
        value = unknown(weight.shape[1] * groups) if given is None else given.value
        foldable = ~value.isnan() if no_borders(module) else value == 0
        if groups > 1:
            made = _grouped_value(weight, bias, groups, value, foldable)
            if given is not None and groups == len(weight) == len(value):
                return Fact(axis, given.cells, made)
            self.facts.left[name] = "its channels are in groups"
            self.facts.pin(node.all_input_nodes)
            return Fact(axis, np.zeros(len(weight), dtype=np.int64), made)
        fact = Fact(axis, cells.new(len(weight)), product_value(weight, bias, value, foldable))
        self.facts.products.append(Product(node, module, given, fact, foldable))
        return fact

    def _norm(self, module: nn.Module, given: Fact | None) -> Fact | None:
        assert isinstance(module, _BatchNorm)
        if given is None or given.axis != 1:
            return None
        return Fact(1, given.cells, norm_value(module, given.value))

    # --- functions and methods ----------------------------------------------------------------------------------------

    def _function(self, node: fx.Node) -> Fact | None:
        target, given = node.target, self._given(node)
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        if target in PAIRS:
            return self._pair(node)
        if target in (torch.cat, torch.concat):
            return self._joined(node)
        if given is None:
            return None
        others = [x for x in (*node.args[1:], *node.kwargs.values()) if isinstance(x, fx.Node)]
        if name in SAME_NAMES and not others:
            function = getattr(Tensor, target) if isinstance(target, str) else target
            return given.with_value(function(given.value.clone(), *node.args[1:], **node.kwargs))
        if (target is F.dropout and not _argument(node, 2, "training", True)) or (
            name == "stochastic_depth" and not _argument(node, 3, "training", True)
        ):
            return given
        if target in STEADY_FUNCTIONS:
            return given if given.axis == 1 else None
        if target is F.avg_pool2d and given.axis == 1:
            return given if len(node.args) <= 3 and not node.kwargs.keys() - {"stride"} else _zeros_only(given)
        if target in FLATTENS or target in RESHAPES:
            flat = target in RESHAPES or (_argument(node, 1, "start_dim", 0), _argument(node, 2, "end_dim", -1)) == (
                1,
                -1,
            )
            return self._flattened(node, given) if flat else None
        if name == "mean":
            return self._mean(node, given)
        if name in ("transpose", "permute"):
            return self._turned(node, given)
        if target is operator.getitem:
            return self._slice(node, given)
        if target is F.pad:
            return self._padded(node, given)
        return self._asked_shape(node, given, name)

    def _pair(self, node: fx.Node) -> Fact | None:
        """x + y, x - y, x y: channel by channel, or with a number."""
        if len(node.args) != 2 or node.kwargs:
            return None
        one, two = (self._given(node, place) for place in (0, 1))
        numbers = [x for x in node.args if isinstance(x, (int, float))]
        apply: Any = (
            operator.add if node.target in SUMS else operator.sub if node.target in DIFFERENCES else operator.mul
        )
        if numbers and (one or two):
            values = [x if isinstance(x, (int, float)) else self.facts.of[x].value for x in node.args]  # type: ignore[index, union-attr]
            return (one or two).with_value(apply(*values))  # type: ignore[union-attr]
        if one is None or two is None:
            return None
        shapes = [self.shapes[x.name] for x in node.args if isinstance(x, fx.Node)]
        if one.axis != two.axis or len(one.cells) != len(two.cells) or len(shapes[0]) != len(shapes[1]):
            return None
        value = apply(one.value, two.value)
        if node.target in PRODUCTS_OF_TWO:
            value = torch.where((one.value == 0) | (two.value == 0), 0.0, value)
        self.facts.cells.tie(one.cells, two.cells)
        return Fact(one.axis, one.cells, value)

    def _joined(self, node: fx.Node) -> Fact | None:
        parts: Any = node.args[0]
        facts = [self.facts.of.get(x) for x in parts] if isinstance(parts, (list, tuple)) else []
        axis = _argument(node, 1, "dim", 0) % len(self.shapes[node.name])
        if not facts or any(fact is None or fact.axis != axis for fact in facts):
            return None
        known: list[Fact] = [fact for fact in facts if fact is not None]
        return Fact(axis, np.concatenate([f.cells for f in known]), torch.cat([f.value for f in known]))

    def _flattened(self, node: fx.Node, given: Fact) -> Fact | None:
        """[N, C, ...] -> [N, C P]: a channel becomes P neighbours."""
        before, after = self._shape_in(node), self.shapes[node.name]
        if given.axis != 1 or after != (before[0], int(np.prod(before[1:]))):
            return None
        positions = int(np.prod(before[2:]))
        return Fact(1, np.repeat(given.cells, positions), given.value.repeat_interleave(positions))

    def _mean(self, node: fx.Node, given: Fact) -> Fact | None:
        axes, keep = _argument(node, 1, "dim", None), _argument(node, 2, "keepdim", False)
        if axes is None or set(node.kwargs) - {"dim", "keepdim"}:
            return None
        rank = len(self._shape_in(node))
        gone = {axis % rank for axis in ([axes] if isinstance(axes, int) else axes)}
        if given.axis in gone:
            return None
        return Fact(given.axis - (0 if keep else sum(axis < given.axis for axis in gone)), given.cells, given.value)

    def _turned(self, node: fx.Node, given: Fact) -> Fact | None:
        rank, rest = len(self.shapes[node.name]), list(node.args[1:])
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

    def _slice(self, node: fx.Node, given: Fact) -> Fact | None:
        """Every second pixel: all channels, and no axis goes."""
        index = node.args[1]
        if not isinstance(index, tuple) or not all(isinstance(part, slice) for part in index):
            return None
        whole = len(index) <= given.axis or index[given.axis] == slice(None)
        return given if whole else None

    def _padded(self, node: fx.Node, given: Fact) -> Fact | None:
        """Zeros around the map; those around the channels are channels of zeros."""
        pads, mode = _argument(node, 1, "pad", ()), _argument(node, 2, "mode", "constant")
        if mode != "constant" or _argument(node, 3, "value", None) or not all(isinstance(x, int) for x in pads):
            return None
        rank = len(self.shapes[node.name])
        place = 2 * (rank - 1 - given.axis)  # pads begin at the last axis
        if len(pads) > place + 2 or min(pads) < 0:
            return None
        before, after = pads[place : place + 2] if len(pads) > place else (0, 0)
        inner = given if not any(pads[:place]) else _zeros_only(given)
        cells = [self.facts.cells.new(before), inner.cells, self.facts.cells.new(after)]
        zeros = [torch.zeros(x, dtype=torch.float64) for x in (before, after)]
        return Fact(given.axis, np.concatenate(cells), torch.cat([zeros[0], inner.value, zeros[1]]))

    def _asked_shape(self, node: fx.Node, given: Fact, name: str) -> Fact | None:
        """How long an axis is: harmless, unless it is the channels'; one channel at least must be there to be asked."""
        rank = len(self._shape_in(node))
        if name == "size" and len(node.args) == 2:
            asked = [node.args[1]]
        elif name == "size" or (name == "getattr" and node.args[1] == "shape"):
            asked = [x.args[1] if x.target is operator.getitem else None for x in node.users]
        elif name == "dim":
            asked = []
        else:
            return None
        if any(not isinstance(x, int) or x % rank == given.axis for x in asked):
            return None
        self.facts.wanted.append(given.cells)
        return HARMLESS


HARMLESS = Fact(0, np.empty(0, dtype=np.int64), unknown(0))
"""Of what is no tensor and does not ask for channels."""

CONSTANT = "_constant_"
"""How attributes begin that stand for a branch of one value each channel."""


def writes(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Whether an operation writes into its first input."""
    if node.op == "call_module":
        return bool(getattr(graph.get_submodule(str(node.target)), "inplace", False))
    named = isinstance(node.target, str) and node.target.endswith("_") and not node.target.endswith("__")
    return node.target in IN_PLACE or bool(node.kwargs.get("inplace")) or (node.op == "call_method" and named)


def bases(graph: fx.GraphModule, node: fx.Node) -> list[fx.Node]:
    """What shares memory with the first input of an operation, or might: back to what surely made a new tensor."""
    found: list[fx.Node] = []
    while node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
        found.append(node)
        fresh = (
            isinstance(graph.get_submodule(str(node.target)), FRESH)
            if node.op == "call_module"
            else node.target in PAIRS
        )
        if fresh and not writes(graph, node):
            break
    return found


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _zeros_only(fact: Fact) -> Fact:
    """Padded with zeros: no other value stays one."""
    return Fact(fact.axis, fact.cells, torch.where(fact.value == 0, fact.value, torch.nan))


def _grouped_value(weight: Tensor, bias: Tensor | None, groups: int, value: Tensor, foldable: Tensor) -> Tensor:
    """`product_value`, group by group."""
    biases = [None] * groups if bias is None else bias.chunk(groups)
    parts = zip(weight.chunk(groups), biases, value.chunk(groups), foldable.chunk(groups), strict=True)
    return torch.cat([product_value(*part) for part in parts])
