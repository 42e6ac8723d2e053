"""Layer by layer through the dense and the repaired network: what each layer is given, and what it should give."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repairability._torch import evaluating, unwrapped
from repairability.calibration import CalibrationSet
from repairability.network.batches import Batch, sample_count
from repairability.network.calls import Call
from repairability.network.layers import Layer, Layers
from repairability.network.streams import Halt, Stream, advance, streams
from repairability.network.trace import Trace, trace
from repairability.network.watching import Watching
from repairability.progress import track
from repairability.repairs.station import FLAT_NORM, Pair, Station, norm_scale, norm_weight

IMAGES = 1024
"""How many calibration images a walk takes, where there are as many."""

_BATCH = 128

HELD = 5 * 2**28
"""The activations that all passes together may hold where they stand, in bytes, as far as that can be known."""

_LIVE = 6
"""Tensors of the size of a layer's input that live while a pass of each network stands there: it, what it is added to,
and its output.
"""


def walk(
    dense: nn.Module,
    repaired: nn.Module,
    layers: Layers,
    calibration: CalibrationSet,
    *,
    images: int = IMAGES,
    shortcuts: bool = True,
    needed: Collection[str] | None = None,
) -> Iterator[Station]:
    """Stations in execution order. What the caller writes into a layer (its weight, its bias, the BatchNorm behind it)
    before it asks for the next station, the later ones see.

    `layers` are those of `repaired`; where that is `dense` itself, nothing is to be written, and one pass serves both.
    Where a layer's branch is added to another (a shortcut), the output that is wanted
    also makes up for the error the other branch carries already:
    y_dense + (other_dense - other_repaired) * sqrt(running_var + eps) / weight, in channels with |weight| >= 1e-3
    (`shortcuts=False`: y_dense everywhere; so too behind a BatchNorm that serves other layers).
    A network that calls a layer several times is run once per layer instead, and without that correction; so is, from
    where it happens on, one whose ways part (experts that are chosen sample by sample).
    Passes begin late where the activations of all of them would not fit (`_room`): early layers then see fewer images.
    A layer that is never reached is an error; with `needed`, only one of these, and the others are passed over.
    """
    wholes = layers.on(dense)
    probe = next(calibration.first(repaired, images, _BATCH))
    way = trace(dense, wholes, probe, forward=calibration.forward, needed=needed)
    room = _room(way)
    batches = list(calibration.first(repaired, images, min(_BATCH, max(1, math.ceil(room[0] / 4)))))
    norms = {layer: unwrapped(repaired).get_submodule(norm) for layer, norm in way.own_norms.items()}
    known = {n: join for n, join in way.joins.items() if join.layer in norms or join.layer not in way.norms}
    joins = known if shortcuts else {}
    joined = {join.layer for join in joins.values()}
    repeated, done = any(calls > 1 for calls in way.calls.values()), 0
    reached = layers.subset(way.order)
    # passes that draw random numbers do so in one order only where they come one after the other
    most = 1 if way.draws else torch.get_num_threads()
    running = [] if repeated else batches
    with (
        streams(dense, running, reached, joins, before=False, forward=calibration.forward) as theirs,
        streams(
            repaired, [] if repaired is dense else running, reached, joins, before=True, forward=calibration.forward
        ) as ours,
    ):
        for name in track(() if repeated else way.order, "layer by layer", len(way.order)):
            norm, count = norms.get(name), max(1, room[done] // sample_count(batches[0]))
            passes = _Passes(theirs[:count], ours[:count], most)
            steady = passes.at(name, norm, name in joined, way.order[:done])
            if steady is None:
                break
            yield Station(layers[name], wholes[name], norm, [pair for pair, _ in steady], way.flats.get(name))
            # these passes stand behind the layer already, with what it gave before it was written
            for pair, branch in steady:
                if branch is not None:
                    again = pair.call.compute()
                    branch.copy_(again if norm is None else _normalised(again, norm))
            done += 1
    for name in track(way.order[done:], "layer by layer", len(way.order) - done):
        pairs = _pairs(dense, repaired, layers[name], wholes[name], calibration, batches)
        yield Station(layers[name], wholes[name], norms.get(name), pairs)


def _room(way: Trace) -> list[int]:
    """How many samples may stand at each layer, in execution order, so that all their passes hold no more than HELD;
    rising, since a pass that has begun stays. Early layers with large maps see fewer samples, and draw more positions.
    """
    room: list[int] = []
    most = 2**31
    for name in reversed(way.order):
        values = math.prod(way.inputs[name][1:])
        most = min(most, max(1, HELD // (4 * _LIVE * values)))
        room.append(most)
    return room[::-1]


class _Passes:
    """Passes of the same batches through both networks; without `ours` they are one and the same."""

    def __init__(self, theirs: Sequence[Stream], ours: Sequence[Stream], most: int) -> None:
        self.theirs, self.ours, self.most = theirs, ours, most

    def at(
        self, name: str, norm: nn.Module | None, joined: bool, passed: Collection[str]
    ) -> list[tuple[Pair, Tensor | None]] | None:
        """All passes at this layer: its product in the repaired network with the output that is wanted of it, and the
        branch that it is, where it is added to another. None where a pass takes another way. A pass that begins here
        goes by the layers that were passed, which are final.
        """
        halts = self._advance(passed)
        pairs = []
        for there, here in halts:
            if there is None or here is None or not there.layer == here.layer == name:
                return None
            call, wanted = here.call, there.output
            if call is None or wanted is None or there.call is None or call.x.shape != there.call.x.shape:
                return None
            pairs.append(Pair(call, wanted))
        if not joined:
            return [(pair, None) for pair in pairs]
        steady: list[tuple[Pair, Tensor | None]] = []
        for (there, here), (call, wanted, _) in zip(self._advance(), pairs, strict=True):
            if there is None or here is None or there.other is None or here.other is None:
                return None
            if here is there:
                steady.append((Pair(call, wanted, here.other), None))
            else:
                wanted = wanted + _correction(there.other - here.other, norm, call)
                steady.append((Pair(call, wanted, here.other), here.branch))
        return steady

    def _advance(self, passed: Collection[str] = ()) -> list[tuple[Halt | None, Halt | None]]:
        """Where each pass stands next, in the dense and in the repaired network."""
        halts = advance([*self.theirs, *self.ours], self.most, passed)
        theirs = halts[: len(self.theirs)]
        return list(zip(theirs, halts[len(self.theirs) :] or theirs, strict=True))


def _correction(error: Tensor, norm: nn.Module | None, call: Call) -> Tensor:
    """The error of the other branch in units of the layer's own output."""
    if norm is None:
        return error
    scale = norm_scale(norm)
    flat = norm_weight(norm).abs() < FLAT_NORM
    factor = torch.where(flat, torch.zeros_like(scale), 1 / torch.where(flat, torch.ones_like(scale), scale))
    return error * call.along(factor)


def _normalised(x: Tensor, norm: nn.Module) -> Tensor:
    mean, var = norm.running_mean, norm.running_var
    return F.batch_norm(x, mean, var, norm.weight, norm.bias, eps=norm.eps)  # type: ignore[arg-type]


def _pairs(
    dense: nn.Module,
    repaired: nn.Module,
    layer: Layer,
    whole: Layer,
    calibration: CalibrationSet,
    batches: Sequence[Batch],
) -> list[Pair]:
    """Every product of a layer with the output that is wanted: the dense network's of the same call. Where the two
    networks call it otherwise, what the dense weights make of the input at hand; where the repaired one never reaches
    it, what the dense one does.
    """
    theirs, ours = _calls(dense, whole, calibration, batches), _calls(repaired, layer, calibration, batches)
    if [call.x.shape for call, _ in theirs] == [call.x.shape for call, _ in ours]:
        return [Pair(call, wanted) for (_, wanted), (call, _) in zip(theirs, ours, strict=True)]
    if not ours:
        return [Pair(*pair) for pair in theirs]
    with torch.no_grad():
        now = layer.weight.clone()
        layer.weight.copy_(whole.weight)
        wanted = [call.compute() for call, _ in ours]
        layer.weight.copy_(now)
    return [Pair(call, output) for (call, _), output in zip(ours, wanted, strict=True)]


def _calls(
    model: nn.Module, layer: Layer, calibration: CalibrationSet, batches: Sequence[Batch]
) -> list[tuple[Call, Tensor]]:
    """Every product of a layer, and what it gave."""
    calls: list[tuple[Call, Tensor]] = []

    def handle(call: Call) -> Tensor:
        output = call.compute()
        calls.append((call.kept(), output.clone()))  # the pass goes on, and may write into both
        return output

    with evaluating(model) as network:
        for batch in batches:
            with Watching(network, [layer], handle, samples=sample_count(batch)):
                calibration.run(network, batch)
    return calls
