"""A torch.fx graph, read node by node; what each kind of node means stands in `operations`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn

from repairability.deploy.runtime.stages import LinearStage, Shape, Stage, Unreadable, reads

MADE = "repairability"
"""Where a node notes the shape and type of what it makes."""


class Reader:
    """The stages so far, and the value that each node of the graph stands for."""

    def __init__(self, traced: fx.GraphModule, batch: int, handlers: Mapping[Any, Handler]) -> None:
        self.traced, self.batch, self.handlers = traced, batch, handlers
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
            self.values[node] = self.new(node)
        elif node.op == "output":
            result = node.args[0]
            if not isinstance(result, fx.Node):
                raise Unreadable(f"its output is a {type(result).__name__}")
            self.output = self.value(result)
        elif MADE not in node.meta:
            return  # a size, say; who uses it for more than a shape is refused
        else:
            called = self.traced.get_submodule(str(node.target)) if node.op == "call_module" else None
            handler = self.handlers.get(type(called) if called is not None else node.target)
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

    def value(self, node: Any) -> int:
        if not isinstance(node, fx.Node) or node not in self.values:
            raise Unreadable(f"{node} is not a value of the network")
        return self.values[node]

    def new(self, node: fx.Node) -> int:
        shape, dtype = node.meta[MADE]
        if len(shape) not in (2, 4) or shape[0] != self.batch or dtype != torch.float32:
            raise Unreadable(f"{node.name} has shape {shape} ({dtype})")
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
        target = self.new(node) if target is None else target
        made = LinearStage(node.name, source, target, weight=weight, bias=bias, groups=shape[0], **changes)
        return self.add(made)

    def alone(self, node: fx.Node, source: fx.Node) -> bool:
        """Whether `node` alone reads the value of `source`, under whatever name, now and later."""
        value = self.value(source)
        if any(value in reads(stage) for stage in self.stages):
            return False
        names = [name for name, number in self.values.items() if number == value]
        users = {user for name in names for user in name.users if MADE in user.meta or user.op == "output"}
        return all(user is node or user in self.values for user in users)

    def folded(self, node: fx.Node, source: fx.Node) -> LinearStage | None:
        """The product that made `source`, where nobody else reads it and nothing is clamped yet."""
        maker = self.maker.get(self.value(source))
        free = isinstance(maker, LinearStage) and maker.open and not maker.at and maker.target not in self.joined
        return maker if isinstance(maker, LinearStage) and free and self.alone(node, source) else None


Handler = Callable[[Reader, fx.Node, Any], int]
"""(reader, node, its module or None) -> the value it makes."""
