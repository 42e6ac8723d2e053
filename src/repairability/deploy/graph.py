"""A network read as a list of stages, by torch.fx: products with BatchNorm, addition and clamp folded in, and pooling.

What is no such network is refused with the reason (`Unreadable`), and its layers are replaced one by one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional as F

from repairability.errors import first_line

INFINITY = float("inf")
Shape = tuple[int, ...]


class Unreadable(Exception):
    """Something the stages below cannot say; the message names it."""


@dataclass
class Stage:
    """One step over whole values. `source` and `target` are numbers of values; a target of several stages
    (a concatenation) is written from channel `at` on.
    """

    name: str
    source: int
    target: int
    at: int = 0


@dataclass
class Product(Stage):
    """target = clamp(weight * source + bias + residual, floor, cap); of a map a convolution, of features a matrix."""

    weight: Tensor = field(default_factory=lambda: torch.empty(0))
    bias: Tensor = field(default_factory=lambda: torch.empty(0))
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    layer: bool = False
    """Whether it is a layer of the user's, not one we made of an operation without weights."""

    residual: int | None = None
    floor: float = -INFINITY
    cap: float = INFINITY

    @property
    def open(self) -> bool:
        """Whether something may still be folded in: nothing is clamped yet."""
        return self.floor == -INFINITY and self.cap == INFINITY


@dataclass
class Pool(Stage):
    """The mean (over all taps, padding included) or the largest in a window."""

    size: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    mean: bool = False


@dataclass
class Mean(Stage):
    """Of each channel, as features."""


@dataclass
class Flatten(Stage):
    """A map as features."""


@dataclass
class Network:
    """Stages in order; value 0 is the input, `output` what comes out."""

    stages: list[Stage]
    shapes: dict[int, Shape]
    """Of each value without its batch: (channels, height, width), or (features,)."""

    output: int


def read(model: nn.Module, example: Tensor) -> Network:
    """The stages of a copy of ours in eval mode. The example decides the shapes."""
    if example.dim() not in (2, 4):
        raise Unreadable(f"its input has {example.dim()} dimensions, not 2 or 4")
    try:
        traced = fx.symbolic_trace(model)
    except Exception as error:
        raise Unreadable(f"torch.fx cannot trace it: {first_line(error)}") from error
    ShapeProp(traced).propagate(example)
    reader = _Reader(traced, len(example))
    for node in traced.graph.nodes:
        reader.take(node)
    return Network(reader.stages, reader.shapes, reader.output)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def reads(stage: Stage) -> list[int]:
    """The values that a stage reads."""
    more = [stage.residual] if isinstance(stage, Product) and stage.residual is not None else []
    return [stage.source, *more]


class _Reader:
    def __init__(self, traced: fx.GraphModule, batch: int) -> None:
        self.traced, self.batch = traced, batch
        self.stages: list[Stage] = []
        self.shapes: dict[int, Shape] = {}
        self.values: dict[fx.Node, int] = {}
        self.maker: dict[int, Stage] = {}
        self.joined: set[int] = set()
        self.output = -1

    def take(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if self.values:
                raise Unreadable(f"it takes a second input, {node.name}")
            self.values[node] = self._new(node)
        elif node.op == "output":
            result = node.args[0]
            if not isinstance(result, fx.Node):
                raise Unreadable(f"its output is a {type(result).__name__}")
            self.output = self._value(result)
        elif "tensor_meta" not in node.meta:
            return  # a size, say; who uses it for more than a shape is refused
        else:
            called = self.traced.get_submodule(str(node.target)) if node.op == "call_module" else None
            handler = HANDLERS.get(type(called) if called is not None else node.target)
            if handler is None or node.op == "get_attr":
                raise Unreadable(f"{node.name} is {type(called).__name__ if called else node.target}")
            self.values[node] = handler(self, node, called)
            self._in_place(node, called)

    def _in_place(self, node: fx.Node, called: nn.Module | None) -> None:
        """Who reads the input of an operation in place later reads its result."""
        method = node.op == "call_method" and str(node.target).endswith("_")
        if method or getattr(called, "inplace", False) or node.kwargs.get("inplace") or node.target is operator.iadd:
            source = node.args[0]
            if isinstance(source, fx.Node):
                self.values[source] = self.values[node]

    def _value(self, node: Any) -> int:
        if not isinstance(node, fx.Node) or node not in self.values:
            raise Unreadable(f"{node} is not a value of the network")
        return self.values[node]

    def _new(self, node: fx.Node) -> int:
        shape = tuple(node.meta["tensor_meta"].shape)
        if len(shape) not in (2, 4) or shape[0] != self.batch or node.meta["tensor_meta"].dtype != torch.float32:
            raise Unreadable(f"{node.name} has shape {shape}")
        number = len(self.shapes)
        self.shapes[number] = shape[1:]
        return number

    def add(self, stage: Stage) -> int:
        self.stages.append(stage)
        self.maker[stage.target] = stage
        return stage.target

    def identity(self, node: fx.Node, source: int, **changes: Any) -> int:
        """Channel by channel, times 1."""
        shape = self.shapes[source]
        weight = changes.pop("weight", torch.ones(shape[0]))
        weight = weight.reshape(-1, *[1] * len(shape))
        bias = changes.pop("bias", torch.zeros(shape[0]))
        target = changes.pop("target", None)
        target = self._new(node) if target is None else target
        made = Product(node.name, source, target, weight=weight, bias=bias, groups=shape[0], **changes)
        return self.add(made)

    def alone(self, node: fx.Node, source: fx.Node) -> bool:
        """Whether `node` alone reads the value of `source`, under whatever name, now and later."""
        value = self._value(source)
        if any(value in reads(stage) for stage in self.stages):
            return False
        names = [name for name, number in self.values.items() if number == value]
        users = {user for name in names for user in name.users if "tensor_meta" in user.meta or user.op == "output"}
        return all(user is node or user in self.values for user in users)

    def folded(self, node: fx.Node, source: fx.Node) -> Product | None:
        """The product that made `source`, where nobody else reads it and nothing is clamped yet."""
        maker = self.maker.get(self._value(source))
        free = isinstance(maker, Product) and maker.open and not maker.at and maker.target not in self.joined
        return maker if isinstance(maker, Product) and free and self.alone(node, source) else None


Handler = Callable[[_Reader, fx.Node, Any], int]


def _convolution(reader: _Reader, node: fx.Node, conv: nn.Conv2d) -> int:
    if conv.padding_mode != "zeros" and conv.padding not in (0, (0, 0)):
        raise Unreadable(f"{node.name} pads with {conv.padding_mode}")
    dilation, padding = _pair(conv.dilation), conv.padding
    if padding == "same":
        spans = [d * (k - 1) for d, k in zip(dilation, conv.kernel_size, strict=True)]
        if any(span % 2 for span in spans):
            raise Unreadable(f"{node.name} pads unevenly")
        padding = (spans[0] // 2, spans[1] // 2)
    around = (0, 0) if padding == "valid" else _pair(padding)
    bias = torch.zeros(conv.out_channels) if conv.bias is None else conv.bias.detach()
    source = reader._value(node.args[0])
    made = Product(str(node.target), source, reader._new(node), weight=conv.weight.detach(), bias=bias, layer=True)
    made.stride, made.padding, made.dilation, made.groups = _pair(conv.stride), around, dilation, conv.groups
    return reader.add(made)


def _linear(reader: _Reader, node: fx.Node, linear: nn.Linear) -> int:
    bias = torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
    source = reader._value(node.args[0])
    made = Product(str(node.target), source, reader._new(node), weight=linear.weight.detach(), bias=bias, layer=True)
    return reader.add(made)


def _batch_norm(reader: _Reader, node: fx.Node, norm: nn.BatchNorm2d) -> int:
    """w' = g w, b' = g (b - mean) + beta, with g = gamma / sqrt(var + eps)."""
    if norm.running_mean is None or norm.running_var is None:
        raise Unreadable(f"{node.name} has no running statistics")
    scale = torch.rsqrt(norm.running_var.double() + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    shift = -scale * norm.running_mean.double()
    if norm.bias is not None:
        shift = shift + norm.bias.detach().double()
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before = reader.folded(node, source)
    if before is None or before.residual is not None:
        return reader.identity(node, reader._value(source), weight=scale.float(), bias=shift.float())
    around = scale.reshape(-1, *[1] * (before.weight.dim() - 1))
    before.weight = (before.weight.double() * around).float()
    before.bias = (before.bias.double() * scale + shift).float()
    return before.target


def _clamp(low: float, high: float) -> Handler:
    def handler(reader: _Reader, node: fx.Node, module: Any) -> int:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        floor, cap = low, high
        if isinstance(module, nn.Hardtanh):
            floor, cap = float(module.min_val), float(module.max_val)
        before = reader.folded(node, source)
        if before is None:
            return reader.identity(node, reader._value(source), floor=floor, cap=cap)
        before.floor, before.cap = floor, cap
        return before.target

    return handler


def _addition(reader: _Reader, node: fx.Node, _: Any) -> int:
    """Folded into whichever of the two is made last."""
    if len(node.args) != 2 or node.kwargs or not all(isinstance(x, fx.Node) for x in node.args):
        raise Unreadable(f"{node.name} adds something else than two values")
    a, b = (reader._value(x) for x in node.args)
    if reader.shapes[a] != reader.shapes[b]:
        raise Unreadable(f"{node.name} adds shapes {reader.shapes[a]} and {reader.shapes[b]}")
    for value, source, other in ((a, node.args[0], b), (b, node.args[1], a)):
        assert isinstance(source, fx.Node)
        before = reader.folded(node, source) if a != b else None
        if before is not None and before.residual is None and before.target == value:
            first = reader.maker.get(other)
            if first is None or reader.stages.index(first) < reader.stages.index(before):
                before.residual = other
                return value
    return reader.identity(node, a, residual=b)


def _concatenation(reader: _Reader, node: fx.Node, _: Any) -> int:
    parts = node.args[0]
    along = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    if not isinstance(parts, (list, tuple)) or along not in (1, -3):
        raise Unreadable(f"{node.name} joins along dimension {along}")
    target, at = reader._new(node), 0
    reader.joined.add(target)
    for part in parts:
        value = reader._value(part)
        reader.identity(node, value, target=target, at=at)
        at += reader.shapes[value][0]
    return target


def _every_other(reader: _Reader, node: fx.Node, _: Any) -> int:
    """x[:, :, ::s, ::s], a convolution with single ones."""
    source, cut = reader._value(node.args[0]), node.args[1]
    whole = slice(None, None, None)
    if not (isinstance(cut, tuple) and len(cut) == 4 and cut[:2] == (whole, whole)):
        raise Unreadable(f"{node.name} cuts {cut}")
    steps = [x.step for x in cut[2:] if isinstance(x, slice) and x.start is None and x.stop is None]
    if len(steps) != 2 or not all(isinstance(step, int) for step in steps):
        raise Unreadable(f"{node.name} cuts {cut}")
    return reader.identity(node, source, stride=tuple(steps))


def _new_channels(reader: _Reader, node: fx.Node, _: Any) -> int:
    """F.pad(x, (0, 0, 0, 0, before, after)): channels of zeros; filters of zeros in the product before, if there is one."""
    around, source = _argument(node, None, 1, "pad", ()), node.args[0]
    rest = (_argument(node, None, 2, "mode", "constant"), _argument(node, None, 3, "value", None) or 0)
    if len(around) != 6 or any(around[:4]) or min(around) < 0 or rest != ("constant", 0):
        raise Unreadable(f"{node.name} pads by {around}")
    assert isinstance(source, fx.Node)
    before = reader.folded(node, source)
    if before is None or before.residual is not None or before.groups != len(before.weight):
        before = reader.maker[reader.identity(node, reader._value(source), target=reader._new(node))]
        assert isinstance(before, Product)
    else:
        reader.shapes[before.target] = tuple(node.meta["tensor_meta"].shape)[1:]
    square = torch.zeros(before.groups, before.groups, *before.weight.shape[2:])
    square[range(before.groups), range(before.groups)] = before.weight[:, 0]
    before.weight = F.pad(square, (*[0] * 6, *around[4:]))
    before.bias, before.groups = F.pad(before.bias, tuple(around[4:])), 1
    return before.target


def _argument(node: fx.Node, module: Any, place: int, name: str, default: Any) -> Any:
    """Of a pooling module or function."""
    if module is not None:
        return getattr(module, name, default)
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _pooling(mean: bool) -> Handler:
    def handler(reader: _Reader, node: fx.Node, module: Any) -> int:
        size = _pair(_argument(node, module, 1, "kernel_size", None))
        stride = _pair(_argument(node, module, 2, "stride", None) or size)
        padding = _pair(_argument(node, module, 3, "padding", 0))
        source, target = reader._value(node.args[0]), reader._new(node)
        expected = [
            (n + 2 * p - k) // s + 1 for n, p, k, s in zip(reader.shapes[source][1:], padding, size, stride, strict=True)
        ]
        if mean:
            whole = _argument(node, module, 5, "count_include_pad", True) or padding == (0, 0)
            plain = whole and _argument(node, module, 6, "divisor_override", None) is None
        else:
            plain = _argument(node, module, 4, "dilation", 1) in (1, (1, 1))
        if not plain or expected != list(reader.shapes[target][1:]):
            raise Unreadable(f"{node.name} pools in a way of its own")
        return reader.add(Pool(node.name, source, target, size=size, stride=stride, padding=padding, mean=mean))

    return handler


def _adaptive(reader: _Reader, node: fx.Node, _: Any) -> int:
    source = reader._value(node.args[0])
    _, height, width = reader.shapes[source]
    rows, columns = tuple(node.meta["tensor_meta"].shape)[2:]
    if (rows, columns) == (height, width):
        return source
    if height % rows or width % columns:
        raise Unreadable(f"{node.name} pools {height} x {width} to {rows} x {columns}")
    size = (height // rows, width // columns)
    return reader.add(Pool(node.name, source, reader._new(node), size=size, stride=size, mean=True))


def _mean(reader: _Reader, node: fx.Node, _: Any) -> int:
    over = _argument(node, None, 1, "dim", None)
    kept = _argument(node, None, 2, "keepdim", False)
    if kept or not isinstance(over, (list, tuple)) or sorted(x % 4 for x in over) != [2, 3]:
        raise Unreadable(f"{node.name} takes a mean over {over}")
    return reader.add(Mean(node.name, reader._value(node.args[0]), reader._new(node)))


def _flatten(reader: _Reader, node: fx.Node, _: Any) -> int:
    """Any reshaping from [n, c, h, w] to [n, c h w]. Behind a mean over the whole map the two are one stage."""
    source = reader._value(node.args[0])
    if tuple(node.meta["tensor_meta"].shape)[1:] == reader.shapes[source]:
        return source
    made, target = reader.maker.get(source), reader._new(node)
    if len(reader.shapes[target]) != 1:
        raise Unreadable(f"{node.name} reshapes to {reader.shapes[target]}")
    whole = isinstance(made, Pool) and made.mean and made.size == reader.shapes[made.source][1:] and made.padding == (0, 0)
    if whole and made is not None and reader.alone(node, node.all_input_nodes[0]):
        reader.stages.remove(made)
        return reader.add(Mean(made.name, made.source, target))
    return reader.add(Flatten(node.name, source, target))


def _same(reader: _Reader, node: fx.Node, _: Any) -> int:
    return reader._value(node.args[0])


def _dropout(reader: _Reader, node: fx.Node, module: Any) -> int:
    if module is None and _argument(node, None, 2, "training", True):
        raise Unreadable(f"{node.name} drops at random")
    return reader._value(node.args[0])


def _handlers(handler: Handler, *keys: Any) -> dict[Any, Handler]:
    return dict.fromkeys(keys, handler)


_RELU = (nn.ReLU, F.relu, torch.relu, torch.relu_, F.relu_, "relu", "relu_")
_DROPOUTS = (nn.Dropout, nn.Dropout2d, nn.AlphaDropout, F.dropout)
HANDLERS: dict[Any, Handler] = {
    **_handlers(_convolution, nn.Conv2d),
    **_handlers(_linear, nn.Linear),
    **_handlers(_batch_norm, nn.BatchNorm2d),
    **_handlers(_clamp(0.0, INFINITY), *_RELU),
    **_handlers(_clamp(0.0, 6.0), nn.ReLU6, nn.Hardtanh, F.relu6),
    **_handlers(_addition, operator.add, operator.iadd, torch.add, "add", "add_"),
    **_handlers(_concatenation, torch.cat, torch.concat),
    **_handlers(_every_other, operator.getitem),
    **_handlers(_new_channels, F.pad),
    **_handlers(_pooling(False), nn.MaxPool2d, F.max_pool2d, torch.max_pool2d),
    **_handlers(_pooling(True), nn.AvgPool2d, F.avg_pool2d),
    **_handlers(_adaptive, nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d),
    **_handlers(_mean, torch.mean, "mean"),
    **_handlers(_flatten, nn.Flatten, torch.flatten, "flatten", "view", "reshape", torch.reshape),
    **_handlers(_dropout, *_DROPOUTS),
    **_handlers(_same, nn.Identity, "contiguous"),
}
"""Modules by their class, functions, and methods by their names."""
