"""compact: a pruned network without what is dead in it; the same outputs, a smaller dense network."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.utils import _pytree as trees

from repairability._torch import check_finite, check_output, copy_of, evaluating, evaluation_mode_, unwrapped
from repairability.deploy.compacting.channels import NORMS, PRODUCTS, Facts
from repairability.deploy.compacting.cutting import Cut, without_dead_branches_
from repairability.deploy.compacting.in_place import out_of_place_
from repairability.deploy.compacting.operations import Reading
from repairability.deploy.compacting.shaping import Shapes
from repairability.errors import InputError, first_line
from repairability.network.batches import Batch, arguments, copied, run, to_model
from repairability.network.folding import without_norms
from repairability.tables import Table, percent

TOLERANCE = 1e-4
"""Of the largest output: sums in another order are 1e-6 of it apart, a wrong channel changes everything."""


@dataclass(frozen=True)
class LayerCut:
    """What is left of one layer; nothing where it went as a whole."""

    name: str
    before: tuple[int, int, int]  # inputs, outputs, parameters
    after: tuple[int, int, int]


@dataclass(frozen=True)
class Compacted:
    """A network with the same outputs, and what went."""

    model: nn.Module
    layers: tuple[LayerCut, ...]
    parameters: tuple[int, int]  # before, after
    blocks: tuple[str, ...] = ()  # branches into an addition that went as a whole, by their last operation
    difference: float = 0.0  # the largest between the outputs on the example, relative to the largest output
    notes: tuple[str, ...] = ()

    @property
    def channels(self) -> tuple[int, int]:
        """Outputs of all layers, before and after."""
        return sum(x.before[1] for x in self.layers), sum(x.after[1] for x in self.layers)

    def table(self) -> Table:
        rows = [
            (x.name, *(f"{a:,}" if a == b else f"{a:,} -> {b:,}" for a, b in zip(x.before, x.after, strict=True)))
            for x in self.layers
            if x.before != x.after
        ]
        before, after = self.parameters
        lines = [
            f"{before:,} parameters before, {after:,} after: {percent(1 - after / max(1, before))} went; outputs on "
            f"the example differ by {self.difference:.1e} of the largest"
        ]
        if self.blocks:
            lines.append(f"branches that passed nothing on, and went: {', '.join(self.blocks)}")
        caption = "\n".join([*lines, *self.notes])
        return Table(("layer", "inputs", "outputs", "parameters"), rows, caption=caption)

    def __str__(self) -> str:
        return str(self.table())

    def to_dict(self) -> dict[str, Any]:
        """Plain objects: what `--json` prints."""
        names = ("inputs", "outputs", "parameters")
        layers = [
            {"name": x.name, **{n: [a, b] for n, a, b in zip(names, x.before, x.after, strict=True)}}
            for x in self.layers
        ]
        about = {"parameters": list(self.parameters), "blocks": list(self.blocks), "difference": self.difference}
        return {**about, "layers": layers, "notes": list(self.notes)}


def compact(model: nn.Module, example: Batch, *, fold_norms: bool = False) -> Compacted:
    """A copy of `model`, for inference, without the channels, filters and branches that make no difference.

    A filter of zeros gives its bias everywhere: a constant, which moves through normalisations and activations into
    the bias of what reads it, where no zero padding stands beside it. A channel that nobody reads goes, and what it was
    made of; at an addition only if it goes on both sides. What cannot be proven stays, and the notes say so.
    `fold_norms`: also fold BatchNorm into the convolutions.

    `example` is a batch as the model takes it; on it the copy must give the outputs of the model, else an InputError.
    """
    model = unwrapped(model)
    check_finite(model)
    plain = evaluation_mode_(copy_of(model))
    before = _sizes(plain)
    batch = to_model(example, plain)
    with evaluating(plain) as network:
        expected = run(network, batch)
    check_output(expected)
    notes: list[str] = []
    try:
        graph = fx.symbolic_trace(plain)
        shapes = _shapes(graph, plain, batch)
    except Exception as error:
        notes.append(f"left as it is, since it cannot be traced: {first_line(error)}")
        small, blocks = plain, []
    else:
        blocks = _compacted_(graph, shapes, notes)
        small = evaluation_mode_(graph)
    if fold_norms:
        small = _folded(small, batch, notes)
    with evaluating(small) as network:
        difference = _difference(expected, run(network, batch))
    after = _sizes(small)
    layers = tuple(LayerCut(name, size, after.get(name, (0, 0, 0))) for name, size in before.items())
    counts = (_count(model), _count(small))
    return Compacted(small, layers, counts, tuple(blocks), difference, tuple(notes))


def _compacted_(graph: fx.GraphModule, shapes: Shapes, notes: list[str]) -> list[str]:
    """Cut our own graph, in place; what is returned are the branches that went."""
    out_of_place_(graph)
    calls = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_module")
    blocks: list[str] = []
    while True:
        facts = Reading(graph, shapes, calls).facts
        gone = without_dead_branches_(graph, facts, shapes)
        blocks += gone
        if not gone:
            break
    cut = Cut(facts)
    notes += _notes(facts, cut)
    cut.apply_(graph)
    return blocks


def _notes(facts: Facts, cut: Cut) -> list[str]:
    notes = [f"{name} is left: {why}" for name, why in facts.left.items()]
    if facts.opaque:
        what = ", ".join(f"{name} ({count})" for name, count in facts.opaque.items())
        notes.append(f"what goes into these is left, since what they do with channels is not known: {what}")
    given = [(product, product.given) for product in facts.products if product.given is not None]
    padded = sum(int((product.constant & cut.stays(fact)).sum()) for product, fact in given)
    if padded:
        words = "they are not 0, and zero padding stands beside them; one stands for all that a layer reads"
        notes.append(f"{padded} constant channels stay: {words}")
    return notes


def _shapes(graph: fx.GraphModule, model: nn.Module, batch: Batch) -> Shapes:
    args, kwargs = arguments(model, copied(batch))
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    named = [kwargs[str(node.target)] for node in places[len(args) :] if str(node.target) in kwargs]
    with evaluating(graph) as shadow:
        assert isinstance(shadow, fx.GraphModule)
        ShapeProp(shadow).propagate(*args, *named)
        metas = {node.name: node.meta.get("tensor_meta") for node in shadow.graph.nodes}
    return {name: tuple(meta.shape) for name, meta in metas.items() if hasattr(meta, "shape")}


def _folded(model: nn.Module, batch: Batch, notes: list[str]) -> nn.Module:
    if not isinstance(batch, Tensor):
        notes.append("BatchNorm is not folded: that takes an example of one tensor")
        return model
    folded = without_norms(model, batch)
    if isinstance(folded, fx.GraphModule):
        for node in list(folded.graph.nodes):
            if node.op == "call_module" and type(folded.get_submodule(str(node.target))) is nn.Identity:
                node.replace_all_uses_with(node.args[0])
                folded.graph.erase_node(node)
        folded.delete_all_unused_submodules()
        folded.recompile()
    return evaluation_mode_(folded)


def _difference(expected: Any, given: Any) -> float:
    """Between all tensors of two outputs, relative to the largest number; too much of it is an error."""
    worst = 0.0
    ours, theirs = trees.tree_leaves(given), trees.tree_leaves(expected)
    for a, b in zip(theirs, ours, strict=True):
        if not isinstance(a, Tensor) or not a.is_floating_point() or not a.numel():
            continue
        scale = a.abs().max().clamp(min=torch.finfo(a.dtype).tiny)
        difference = float((a - b).abs().max() / scale) if a.shape == b.shape else float("inf")
        if not difference <= TOLERANCE * (1 if a.dtype.itemsize > 2 else 100):
            raise InputError(
                f"the compacted network is not the same: an output differs by {difference:.2g} of the largest, which "
                "is more than rounding; please report this network"
            )
        worst = max(worst, difference)
    return worst


def _sizes(model: nn.Module) -> dict[str, tuple[int, int, int]]:
    """Inputs, outputs and parameters of convolutions, linear layers and normalisations."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, (*PRODUCTS, *NORMS)):
            weight: Any = module.weight
            each: Any = module
            outputs = each.num_features if isinstance(module, NORMS) else len(weight)
            inputs = outputs if isinstance(module, NORMS) else weight.shape[1] * getattr(module, "groups", 1)
            found[name] = (inputs, outputs, _count(module))
    return found


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
