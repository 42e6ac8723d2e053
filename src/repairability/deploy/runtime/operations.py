"""What the nodes of a graph mean as stages: modules, functions and methods."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from repairability.deploy.runtime.reader import MADE, Handler, Reader
from repairability.deploy.runtime.stages import INFINITY, Flatten, LinearStage, Mean, Pool, Unreadable
from repairability.network.folding import norm_map


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _convolution(reader: Reader, node: fx.Node, conv: nn.Conv2d) -> int:
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
    source = reader.value(node.args[0])
    made = LinearStage(str(node.target), source, reader.new(node), weight=conv.weight.detach(), bias=bias, layer=True)
    made.stride, made.padding, made.dilation, made.groups = _pair(conv.stride), around, dilation, conv.groups
    return reader.add(made)


def _linear(reader: Reader, node: fx.Node, linear: nn.Linear) -> int:
    bias = torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
    source = reader.value(node.args[0])
    made = LinearStage(str(node.target), source, reader.new(node), weight=linear.weight.detach(), bias=bias, layer=True)
    return reader.add(made)


def _batch_norm(reader: Reader, node: fx.Node, norm: nn.BatchNorm2d) -> int:
    """y -> a y + c behind w x + b: w' = a w, b' = a b + c."""
    if norm.running_mean is None:
        raise Unreadable(f"{node.name} has no running statistics")
    scale, shift = norm_map(norm)
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before = reader.folded(node, source)
    if before is None or before.residual is not None:
        return reader.identity(node, reader.value(source), weight=scale.float(), bias=shift.float())
    around = scale.reshape(-1, *[1] * (before.weight.dim() - 1))
    before.weight = (before.weight.double() * around).float()
    before.bias = (before.bias.double() * scale + shift).float()
    return before.target


def _clamp(low: float, high: float) -> Handler:
    def handler(reader: Reader, node: fx.Node, module: Any) -> int:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        floor, cap = low, high
        if isinstance(module, nn.Hardtanh):
            floor, cap = float(module.min_val), float(module.max_val)
        before = reader.folded(node, source)
        if before is None:
            return reader.identity(node, reader.value(source), floor=floor, cap=cap)
        before.floor, before.cap = floor, cap
        return before.target

    return handler


def _addition(reader: Reader, node: fx.Node, _: Any) -> int:
    """Folded into whichever of the two is made last."""
    if len(node.args) != 2 or node.kwargs or not all(isinstance(x, fx.Node) for x in node.args):
        raise Unreadable(f"{node.name} adds something else than two values")
    a, b = (reader.value(x) for x in node.args)
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


def _concatenation(reader: Reader, node: fx.Node, _: Any) -> int:
    parts = node.args[0]
    along = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    if not isinstance(parts, (list, tuple)) or along not in (1, -3):
        raise Unreadable(f"{node.name} joins along dimension {along}")
    target, at = reader.new(node), 0
    reader.joined.add(target)
    for part in parts:
        value = reader.value(part)
        reader.identity(node, value, target=target, at=at)
        at += reader.shapes[value][0]
    return target


def _every_other(reader: Reader, node: fx.Node, _: Any) -> int:
    """x[:, :, ::s, ::s], a convolution with single ones."""
    source, cut = reader.value(node.args[0]), node.args[1]
    whole = slice(None, None, None)
    if not (isinstance(cut, tuple) and len(cut) == 4 and cut[:2] == (whole, whole)):
        raise Unreadable(f"{node.name} cuts {cut}")
    steps = [x.step for x in cut[2:] if isinstance(x, slice) and x.start is None and x.stop is None]
    if len(steps) != 2 or not all(isinstance(step, int) for step in steps):
        raise Unreadable(f"{node.name} cuts {cut}")
    return reader.identity(node, source, stride=tuple(steps))


def _new_channels(reader: Reader, node: fx.Node, _: Any) -> int:
    """F.pad(x, (0, 0, 0, 0, before, after)): channels, and so filters, of zeros."""
    around, source = _argument(node, None, 1, "pad", ()), node.args[0]
    rest = (_argument(node, None, 2, "mode", "constant"), _argument(node, None, 3, "value", None) or 0)
    if len(around) != 6 or any(around[:4]) or min(around) < 0 or rest != ("constant", 0):
        raise Unreadable(f"{node.name} pads by {around}")
    assert isinstance(source, fx.Node)
    before = reader.folded(node, source)
    if before is None or before.residual is not None or before.groups != len(before.weight):
        made = reader.maker[reader.identity(node, reader.value(source), target=reader.new(node))]
        assert isinstance(made, LinearStage)
        before = made
    else:
        reader.shapes[before.target] = node.meta[MADE][0][1:]
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
    def handler(reader: Reader, node: fx.Node, module: Any) -> int:
        size = _pair(_argument(node, module, 1, "kernel_size", None))
        stride = _pair(_argument(node, module, 2, "stride", None) or size)
        padding = _pair(_argument(node, module, 3, "padding", 0))
        source, target = reader.value(node.args[0]), reader.new(node)
        expected = [
            (n + 2 * p - k) // s + 1
            for n, p, k, s in zip(reader.shapes[source][1:], padding, size, stride, strict=True)
        ]
        if mean:  # of whole windows
            whole = _argument(node, module, 5, "count_include_pad", True) or padding == (0, 0)
            plain = whole and _argument(node, module, 6, "divisor_override", None) is None
            plain = plain and expected == list(reader.shapes[target][1:])
        else:
            plain = _argument(node, module, 4, "dilation", 1) in (1, (1, 1))
        if not plain:
            raise Unreadable(f"{node.name} pools in a way of its own")
        return reader.add(Pool(node.name, source, target, size=size, stride=stride, padding=padding, mean=mean))

    return handler


def _adaptive(reader: Reader, node: fx.Node, _: Any) -> int:
    source = reader.value(node.args[0])
    _, height, width = reader.shapes[source]
    rows, columns = node.meta[MADE][0][2:]
    if (rows, columns) == (height, width):
        return source
    if height % rows or width % columns:
        raise Unreadable(f"{node.name} pools {height} x {width} to {rows} x {columns}")
    size = (height // rows, width // columns)
    return reader.add(Pool(node.name, source, reader.new(node), size=size, stride=size, mean=True))


def _mean(reader: Reader, node: fx.Node, _: Any) -> int:
    over = _argument(node, None, 1, "dim", None)
    kept = _argument(node, None, 2, "keepdim", False)
    if kept or not isinstance(over, (list, tuple)) or sorted(x % 4 for x in over) != [2, 3]:
        raise Unreadable(f"{node.name} takes a mean over {over}")
    return reader.add(Mean(node.name, reader.value(node.args[0]), reader.new(node)))


def _flatten(reader: Reader, node: fx.Node, _: Any) -> int:
    """Any reshaping from [n, c, h, w] to [n, c h w]. Behind a mean over the whole map the two are one stage."""
    source = reader.value(node.args[0])
    if node.meta[MADE][0][1:] == reader.shapes[source]:
        return source
    made, target = reader.maker.get(source), reader.new(node)
    if len(reader.shapes[target]) != 1:
        raise Unreadable(f"{node.name} reshapes to {reader.shapes[target]}")
    whole = (
        isinstance(made, Pool) and made.mean and made.size == reader.shapes[made.source][1:] and made.padding == (0, 0)
    )
    if whole and made is not None and reader.alone(node, node.all_input_nodes[0]):
        reader.stages.remove(made)
        return reader.add(Mean(made.name, made.source, target))
    return reader.add(Flatten(node.name, source, target))


def _same(reader: Reader, node: fx.Node, _: Any) -> int:
    return reader.value(node.args[0])


def _dropout(reader: Reader, node: fx.Node, module: Any) -> int:
    if module is None and _argument(node, None, 2, "training", True):
        raise Unreadable(f"{node.name} drops at random")
    return reader.value(node.args[0])


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
