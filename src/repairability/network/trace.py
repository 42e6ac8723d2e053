"""What happens when the model runs: in which order its layers are reached, how often, which BatchNorm follows, where a
layer's branch is added to another, and which activation takes what comes out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from repairability._torch import Draws, evaluating
from repairability.errors import InputError
from repairability.network.batches import PROBE, Batch, Forward, run, sample_count
from repairability.network.calls import Call
from repairability.network.flat import LOOKS, Flat, flat_of
from repairability.network.layers import Layers
from repairability.network.samples import Samples
from repairability.network.unfold import Geometry
from repairability.network.watching import Watching


@dataclass(frozen=True)
class Join:
    """An addition whose operand is the output of a layer, or of the BatchNorm behind it, as it is."""

    layer: str
    operand: int


@dataclass(frozen=True)
class Trace:
    """Layers in execution order (of their first call), calls per layer, the shape of each layer's input as its product
    sees it [n, channels, *spatial], the product's geometry and its bias (of the first call), the layers whose channels
    can be shifted (a bias that can be written, or a BatchNorm of their own behind them), the name of the BatchNorm that
    takes a layer's output as it is, the same where it takes nothing else (`own_norms`), and by their number among the
    pass's additions those that join a layer's branch with a tensor that is known without the layers after it. `flats`:
    the activation with flat ends that takes a layer's output, behind its BatchNorm and the sum it is added to, where
    nothing else does.
    """

    order: tuple[str, ...]
    calls: dict[str, int]
    inputs: dict[str, tuple[int, ...]]
    geometries: dict[str, Geometry]
    biases: dict[str, Tensor]
    shiftable: frozenset[str]
    norms: dict[str, str]
    own_norms: dict[str, str]
    joins: dict[int, Join] = field(default_factory=dict)
    flats: dict[str, Flat] = field(default_factory=dict)
    draws: bool = False  # the pass draws random numbers


def trace(
    model: nn.Module,
    layers: Layers,
    batch: Batch,
    *,
    forward: Forward | None = None,
    needed: Collection[str] | None = None,
) -> Trace:
    """Run a batch through `model` and watch; the model is only read. A layer that is never reached is an error that
    names it; where only some layers are `needed`, the others are left out of the trace.
    """
    wanted = layers.names if needed is None else needed
    few = next(Samples((batch,)).split(PROBE))
    way = _trace(model, layers, few, forward)
    if few is not batch and any(name not in way.calls for name in wanted):
        way = _trace(model, layers, batch, forward)
    missed = [name for name in wanted if name not in way.calls]
    if missed:
        raise InputError(f"the model never reaches {', '.join(missed)} on these images; skip such layers")
    return way


def _trace(model: nn.Module, layers: Layers, batch: Batch, forward: Forward | None) -> Trace:
    calls: dict[str, int] = {}
    inputs: dict[str, tuple[int, ...]] = {}
    geometries: dict[str, Geometry] = {}
    biases: dict[str, Tensor] = {}
    shiftable: set[str] = set()
    outputs: _Held = {}
    norms: dict[str, str] = {}
    norm_calls: dict[str, int] = {}
    joins: dict[int, Join] = {}
    flats: dict[str, list[Flat | None]] = {}  # what takes a layer's output; None: something without flat ends
    sums: _Held = {}  # of a layer's branch and another
    last = joined = ""

    def handle(call: Call) -> Tensor:
        nonlocal last
        last = name = call.layer.name
        calls[name] = calls.get(name, 0) + 1
        inputs.setdefault(name, tuple(call.inputs().shape))
        geometries.setdefault(name, call.geometry)
        if call.bias is not None:
            biases.setdefault(name, call.bias.detach())
        if call.bias_place is not None:
            shiftable.add(name)
        output = call.compute()
        outputs[id(output)] = (name, output, output._version)
        return output

    def norm(name: str, x: Tensor, output: Tensor) -> None:
        norm_calls[name] = norm_calls.get(name, 0) + 1
        layer = _whose(outputs, x)
        if layer is not None:
            norms[layer] = name
            outputs[id(output)] = (layer, output, output._version)

    def added(number: int, operands: tuple[Tensor, Tensor]) -> None:
        nonlocal joined
        # only the layer reached last: what it is added to then hangs on no layer after it
        own = [bool(last) and _whose(outputs, operand) == last for operand in operands]
        if operands[0].shape == operands[1].shape and own[0] != own[1]:
            joins[number] = Join(last, own.index(True))
            joined = last

    def used(function: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        nonlocal joined
        joining, joined = joined, ""
        if function in LOOKS:
            return
        for tensor in tree_leaves((args, kwargs)):
            written = result is tensor  # then as it was before this call
            layer = _whose(outputs, tensor, written=written)
            passed_on = layer == joining or (function == "batch_norm" and _whose(outputs, result) == layer)
            if layer is not None and not passed_on:
                flats.setdefault(layer, []).append(flat_of(function, args, kwargs, summed=False))
            layer = _whose(sums, tensor, written=written)
            if layer is not None:
                flats.setdefault(layer, []).append(flat_of(function, args, kwargs, summed=True))
        if joining and isinstance(result, Tensor):
            sums[id(result)] = (joining, result, result._version)

    with evaluating(model) as network:
        watching = Watching(
            network, layers.on(network), handle, samples=sample_count(batch), norm=norm, added=added, used=used
        )
        with Draws() as draws, watching:  # type: ignore[no-untyped-call]
            final = run(network, batch, forward)
    for tensor in tree_leaves(final):  # what is put out is felt
        for layer in (_whose(outputs, tensor), _whose(sums, tensor)):
            if layer is not None:
                flats.setdefault(layer, []).append(None)
    own = {layer: norm for layer, norm in norms.items() if calls[layer] == norm_calls[norm] == 1}
    # behind a norm that other layers share, nobody knows which output an end is of
    ends = {
        x: takers[0] for x, takers in flats.items() if len(takers) == calls[x] == 1 and (x in own or x not in norms)
    }
    sums_of = Counter(join.layer for join in joins.values())
    felt = {layer: end for layer, end in ends.items() if end is not None and sums_of[layer] == int(end.summed)}
    shifts = frozenset({*shiftable, *own})
    return Trace(tuple(calls), calls, inputs, geometries, biases, shifts, norms, own, joins, felt, draws.found)


_Held = dict[int, tuple[str, Tensor, int]]
"""By id: a layer, its tensor (held, so that no id is used twice) and the tensor's version."""


def _whose(known: _Held, tensor: Any, *, written: bool = False) -> str | None:
    """The layer whose tensor this is, unchanged since; `written`: but for the call that just wrote into it."""
    layer, held, version = known.get(id(tensor), ("", None, 0))
    return layer if held is not None and held is tensor and held._version == version + written else None
