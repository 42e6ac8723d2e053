"""A network read as stages, by torch.fx.

What is no such network is refused with the reason (`Unreadable`), and its layers are replaced one by one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn

from repairability.deploy.runtime.operations import HANDLERS
from repairability.deploy.runtime.reader import MADE, Reader
from repairability.deploy.runtime.stages import Staged, Unreadable
from repairability.errors import first_line


class _Shapes(fx.Interpreter):
    """Notes the shape and type of what each node makes."""

    def run_node(self, node: fx.Node) -> Any:
        result = super().run_node(node)
        if isinstance(result, Tensor):
            node.meta[MADE] = (tuple(result.shape), result.dtype)
        return result


def read(model: nn.Module, example: Tensor) -> Staged:
    """The stages of a copy of ours in eval mode. The example decides the shapes."""
    if example.dim() not in (2, 4):
        raise Unreadable(f"its input has {example.dim()} dimensions, not 2 or 4")
    try:
        traced = fx.symbolic_trace(model)
        _Shapes(traced).run(example)
    except Exception as error:
        raise Unreadable(f"torch.fx cannot trace it: {first_line(error)}") from error
    reader = Reader(traced, len(example), HANDLERS)
    for node in traced.graph.nodes:
        reader.take(node)
    return Staged(reader.stages, reader.shapes, reader.output)
