"""What each operation of a traced network does to channels: a walk that gives each node its fact."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from repairability.deploy.compacting.channels import (
    NORMS,
    PRODUCTS,
    Fact,
    Facts,
    Product,
    cuttable,
    grouped_value,
    no_borders,
    norm_value,
    product_value,
    unknown,
)
from repairability.deploy.compacting.in_place import bases, writes
from repairability.deploy.compacting.joining import PAIRS, joined, pair
from repairability.deploy.compacting.shaping import (
    Shapes,
    argument,
    flattened,
    mean,
    padded,
    shape_in,
    slice_,
    turned,
    zeros_only,
)

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
    *("mish", "softplus", "clamp", "neg"),
}
"""Functions and methods that work on each number by itself."""

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
        if given and node.op != "output" and str(node.target) not in self.facts.left:
            kind = node.target if node.op == "call_method" else getattr(node.target, "__name__", node.target)
            if node.op == "call_module":
                kind = type(self.graph.get_submodule(str(node.target))).__name__
            self.facts.opaque[str(kind)] += 1
        self.facts.pin(given)

    # --- modules ------------------------------------------------------------------------------------------------------

    def _module(self, node: fx.Node, module: nn.Module) -> Fact | None:
        given = self.facts.given(node)
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
            around: Any = module.padding
            plain = not np.any(around) or not module.count_include_pad
            return given if plain and not getattr(module, "divisor_override", None) else zeros_only(given)
        if type(module) is nn.Flatten:
            return flattened(node, given, self.shapes) if (module.start_dim, module.end_dim) == (1, -1) else None
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
            made = grouped_value(weight, bias, groups, value, foldable)
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
        target, given = node.target, self.facts.given(node)
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        if target in PAIRS:
            return pair(node, self.facts, self.shapes)
        if target in (torch.cat, torch.concat):
            return joined(node, self.facts, self.shapes)
        if given is None:
            return None
        others = [x for x in (*node.args[1:], *node.kwargs.values()) if isinstance(x, fx.Node)]
        if name in ("contiguous", "clone", "detach"):
            return given
        if name in SAME_NAMES and not others:
            function = getattr(Tensor, target) if isinstance(target, str) else target
            return given.with_value(function(given.value.clone(), *node.args[1:], **node.kwargs))
        if (target is F.dropout and not argument(node, 2, "training", True)) or (
            name == "stochastic_depth" and not argument(node, 3, "training", True)
        ):
            return given
        if target in STEADY_FUNCTIONS:
            return given if given.axis == 1 else None
        if target is F.avg_pool2d and given.axis == 1:
            return given if len(node.args) <= 3 and not node.kwargs.keys() - {"stride"} else zeros_only(given)
        if target in FLATTENS or target in RESHAPES:
            flat = target in RESHAPES or (argument(node, 1, "start_dim", 0), argument(node, 2, "end_dim", -1)) == (
                1,
                -1,
            )
            return flattened(node, given, self.shapes) if flat else None
        if name == "mean":
            return mean(node, given, self.shapes)
        if name in ("transpose", "permute"):
            return turned(node, given, self.shapes)
        if target is operator.getitem:
            return slice_(node, given)
        if target is F.pad:
            self.facts.wanted.append(given.cells)  # there must be something to pad
            return padded(node, given, self.shapes, self.facts.cells)
        return self._asked_shape(node, given, name)

    def _asked_shape(self, node: fx.Node, given: Fact, name: str) -> Fact | None:
        """How long an axis is: harmless, unless it is the channels'; one channel at least must be there to be asked."""
        rank = len(shape_in(node, self.shapes))
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
