"""Operations of a traced network that write into their input: which do, into what, and how they stop doing so."""

from __future__ import annotations

import operator

import torch
from torch import fx, nn

from repairability.deploy.compacting.channels import NORMS, PRODUCTS

IN_PLACE = {operator.iadd: operator.add, operator.imul: operator.mul, operator.isub: operator.sub}
_NEW = (operator.add, torch.add, operator.sub, torch.sub, operator.mul, torch.mul, "add", "sub", "mul")
_FRESH = (*PRODUCTS, *NORMS, nn.MaxPool2d, nn.AvgPool2d)
"""Modules whose output shares no memory with their input."""


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
            isinstance(graph.get_submodule(str(node.target)), _FRESH)
            if node.op == "call_module"
            else node.target in _NEW
        )
        if fresh and not writes(graph, node):
            break
    return found


def out_of_place_(graph: fx.GraphModule) -> None:
    """Operations that write into their input become ones that do not, where nobody else reads what they write into; a
    branch may then be taken out. The others are left, and with them whoever reads it.
    """
    nodes = list(graph.graph.nodes)
    for node in nodes:
        same = [x for x in nodes if x.op == "call_module" and x.target == node.target] or [node]
        alone = all(len(base.users) == 1 for one in same for base in bases(graph, one))
        if not alone or not writes(graph, node):
            continue
        if node.op == "call_module":
            graph.get_submodule(str(node.target)).inplace = False  # type: ignore[assignment]
        elif node.target in IN_PLACE:
            node.target = IN_PLACE[node.target]
        elif node.kwargs.get("inplace"):
            node.kwargs = {**node.kwargs, "inplace": False}
        else:
            node.target = str(node.target).removesuffix("_")
    graph.recompile()
