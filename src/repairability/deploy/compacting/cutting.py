"""Which channels stay, and the layers without the others.

A cell stays where something that is not known takes it, or where a filter that stays reads one of its channels with a
weight that is not zero, unless that channel has one value everywhere, which moves into the reader's bias. So what stays
is the least set with this property; all else goes.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from repairability.deploy.compacting.channels import PINNED, Fact, Facts, Product, sums
from repairability.deploy.compacting.operations import CONSTANT, FLATTENS, RESHAPES
from repairability.deploy.compacting.shaping import Shapes


class Cut:
    """The channels that stay, by tensor."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        cells = facts.cells
        self._roots = cells.roots(np.arange(len(cells.parents)))
        self._live = np.zeros(len(cells.parents), dtype=bool)
        self._live[PINNED] = True
        read = [(product, product.read().numpy()) for product in reversed(facts.products)]
        self._spread(read)
        while self._one_more(read):
            self._spread(read)

    def _spread(self, read: list[tuple[Product, np.ndarray]]) -> None:
        """What a filter that stays reads, stays; until nothing changes."""
        before = -1
        while before != (before := int(self._live.sum())):
            for product, matrix in read:
                if product.given is not None:
                    taken = matrix[self._of(product.made.cells)].any(0)
                    self._live[self._roots[product.given.cells[taken]]] = True

    def _one_more(self, read: list[tuple[Product, np.ndarray]]) -> bool:
        """Keep one channel where one is needed and none is: a layer needs an input to have outputs."""
        wanted = [product.given.cells for product, _ in read if product.given and self._of(product.made.cells).any()]
        for cells in (*wanted, *self.facts.wanted):
            if len(cells) and not self._of(cells).any():
                self._live[self._roots[cells[0]]] = True
                return True
        return False

    def _of(self, cells: np.ndarray) -> np.ndarray:
        live: np.ndarray = self._live[self._roots[cells]]
        return live

    def stays(self, fact: Fact) -> Tensor:
        """[channels]: which stay."""
        return torch.from_numpy(self._of(fact.cells))

    # --- the graph ----------------------------------------------------------------------------------------------------

    def apply_(self, graph: fx.GraphModule) -> None:
        """Cut the layers of our copy; what nothing needs any more goes from the graph."""
        products = {product.node: product for product in self.facts.products}
        for node in list(graph.graph.nodes):
            fact = self.facts.of.get(node)
            if fact is None:
                continue
            stays = self.stays(fact)
            if not stays.any():
                continue  # nobody takes it any more
            if node in products:
                _cut_product_(products[node], self)
            elif node.op == "call_module":
                module = graph.get_submodule(str(node.target))
                if isinstance(module, _BatchNorm) or getattr(module, "groups", 1) > 1:
                    _cut_each_(module, stays)
            elif node.op == "get_attr":
                buffer: Tensor = getattr(graph, str(node.target))
                setattr(graph, str(node.target), buffer[:, stays])
            elif not stays.all():
                self._cut_function_(node, fact)
        graph.graph.eliminate_dead_code()
        graph.delete_all_unused_submodules()
        _drop_constants_(graph)
        graph.recompile()

    def _cut_function_(self, node: fx.Node, fact: Fact) -> None:
        if node.target in RESHAPES and node.target not in FLATTENS:  # a length may be written into it
            with node.graph.inserting_after(node):
                flat = node.graph.call_function(torch.flatten, (node.args[0], 1))
            node.replace_all_uses_with(flat)
        elif node.target in (torch.cat, torch.concat):
            parts: Any = node.args[0]
            node.args = ([x for x in parts if self._some(x)], *node.args[1:])
        elif node.target is F.pad:
            given = self.facts.of[node.args[0]]  # type: ignore[index]
            assert given is not None
            pads = list(node.args[1] if len(node.args) > 1 else node.kwargs["pad"])  # type: ignore[arg-type]
            place = 2 * (len(pads) // 2 - 1)
            stays = self.stays(fact)
            if len(fact.cells) != len(given.cells):
                before: Any = pads[place]
                pads[place] = int(stays[:before].sum())
                pads[place + 1] = int(stays[before + len(given.cells) :].sum())
            kwargs = {key: value for key, value in node.kwargs.items() if key != "pad"}
            node.args, node.kwargs = (node.args[0], tuple(pads), *node.args[2:]), kwargs

    def _some(self, node: fx.Node) -> bool:
        fact = self.facts.of[node]
        return fact is None or bool(self.stays(fact).any())


def _cut_product_(product: Product, cut: Cut) -> None:
    """w' = w[stays, stays], b' = b + sum over the channels c that go of x_c sum_rs w_crs; constant channels that go and
    do not fold are added to the one that stands for them.
    """
    module: Any = product.module
    given, out = product.given, cut.stays(product.made)
    into = torch.ones(len(product.foldable), dtype=torch.bool) if given is None else cut.stays(given)
    if out.all() and into.all():
        return
    weight: Tensor = module.weight
    changed = weight.detach().clone()
    bias = None if module.bias is None else module.bias.detach()[out]
    if given is not None:
        gone = ~into & product.foldable
        moved = sums(weight)[out][:, gone] @ given.value[gone]
        if moved.any():
            bias = (moved if bias is None else bias.cpu().double() + moved).to(weight)
        keeper, apart = product.keeper, ~into & product.constant
        if keeper is not None and into[keeper] and apart.any():
            ratios = (given.value[apart] / given.value[keeper]).to(weight.device)
            added = torch.tensordot(changed[:, apart].double(), ratios, ([1], [0]))
            changed[:, keeper] = (changed[:, keeper].double() + added).to(weight.dtype)
    module.weight = _parameter(changed[out][:, into], weight)
    module.bias = None if bias is None else _parameter(bias, weight)
    if isinstance(module, nn.Linear):
        module.in_features, module.out_features = int(into.sum()), int(out.sum())
    else:
        module.in_channels, module.out_channels = int(into.sum()), int(out.sum())


def _cut_each_(module: Any, stays: Tensor) -> None:
    """A depthwise convolution or a BatchNorm: the same channels in and out. Channels in groups are all kept."""
    if stays.all():
        return
    for name, parameter in list(module._parameters.items()):
        if parameter is not None:
            setattr(module, name, _parameter(parameter.detach()[stays], parameter))
    for name, buffer in list(module._buffers.items()):
        if buffer is not None and buffer.dim():
            setattr(module, name, buffer[stays].clone())
    count = int(stays.sum())
    if isinstance(module, _BatchNorm):
        module.num_features = count
    else:
        module.in_channels = module.out_channels = module.groups = count


def _parameter(value: Tensor, like: Tensor) -> nn.Parameter:
    return nn.Parameter(value.contiguous().clone(), requires_grad=like.requires_grad)


def _drop_constants_(graph: fx.GraphModule) -> None:
    used = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    for name in [x for x in graph._buffers if x.startswith(CONSTANT) and x not in used]:
        delattr(graph, name)


def without_dead_branches_(graph: fx.GraphModule, facts: Facts, shapes: Shapes) -> list[str]:
    """An addition of a branch of one value each channel: of zeros, it is the other branch; else it adds the values.
    What is returned are the branches that went, by their last operation.
    """
    gone = []
    for node in list(graph.graph.nodes):
        if node.target not in (operator.add, torch.add, "add") or facts.of.get(node) is None or len(node.args) != 2:
            continue
        for branch, other in (node.args, node.args[::-1]):
            if not isinstance(branch, fx.Node) or not isinstance(other, fx.Node) or branch is other:
                continue
            if branch.op == "get_attr":
                continue
            fact = facts.of[branch]
            if fact is None or fact.axis != 1 or not fact.known.all() or shapes[other.name] != shapes[node.name]:
                continue
            gone.append(branch.name)
            if not fact.value.any():
                node.replace_all_uses_with(other)
            else:
                like = next(p for p in graph.parameters() if p.is_floating_point())
                name = f"{CONSTANT}{branch.name}"
                values = fact.value.to(like.device, like.dtype).view(1, -1, *[1] * (len(shapes[node.name]) - 2))
                graph.register_buffer(name, values)
                with graph.graph.inserting_before(node):
                    constant = graph.graph.get_attr(name)
                shapes[constant.name] = tuple(values.shape)
                node.replace_input_with(branch, constant)
            break
    graph.graph.eliminate_dead_code()
    graph.delete_all_unused_submodules()
    graph.recompile()
    return gone
