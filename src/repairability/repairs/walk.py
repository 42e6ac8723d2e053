"""Layer by layer through the dense and the repaired network: what each layer is given, and what it should give."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repairability._torch import evaluating
from repairability.algebra.moments import InputMoments, LeastSquares
from repairability.calibration import CalibrationSet
from repairability.errors import InputError
from repairability.network.batches import Batch, sample_count
from repairability.network.calls import Call
from repairability.network.layers import Layer, Layers
from repairability.network.streams import Stream, streams
from repairability.network.trace import trace
from repairability.network.watching import Watching
from repairability.progress import track

IMAGES = 1024
"""How many calibration images a walk takes, where there are as many."""

_BATCH = 128
_COLUMNS = 2**24
"""Input columns are laid out for so many values at a time: 64 MB in float32."""

_FLAT = 1e-3
"""A BatchNorm channel with a smaller weight passes no correction on."""


@dataclass(frozen=True)
class Station:
    """A layer of the network under repair: its products with the output that is wanted of each, the same layer of the
    dense network, and the BatchNorm that takes this layer's output and no other's.
    """

    layer: Layer
    dense: Layer
    norm: nn.Module | None
    pairs: Sequence[tuple[Call, Tensor]]

    @property
    def bias_place(self) -> Tensor | None:
        """The layer's bias, where one can be written."""
        return self.pairs[0][0].bias_place

    def problem(self, moments: InputMoments) -> LeastSquares:
        """The layer's least squares: dense weights, and a step of an output worth |weight| / sqrt(running_var + eps) of
        the BatchNorm behind it.
        """
        unit = torch.ones(self.layer.outputs, dtype=torch.float64)
        if self.norm is not None:
            unit = _norm_scale(self.norm).abs().double().cpu()
        has_shift = self.norm is not None or self.bias_place is not None
        weights = self.dense.filters().double().cpu()
        return LeastSquares.of(moments, weights, unit.view(self.layer.groups, -1), centred=has_shift)

    def moments(self) -> InputMoments:
        groups, channels = self.layer.groups, self.layer.outputs
        filter_size = self.layer.total // channels
        moments = InputMoments(groups, filter_size, channels // groups)
        for call, y in self.pairs:
            geometry = call.geometry
            images, wanted = _wide(call.inputs()), _wide(call.channels(y))  # [N, C_in, ...], [N, C, P]
            values = groups * filter_size * wanted.shape[2]  # of one image's columns
            last = 1
            if geometry.slides:  # the last axis need not be unfolded
                last, values = geometry.out_size(images.shape[2:])[-1], values // geometry.kernel[-1]
            step = max(1, _COLUMNS // max(1, values))
            for part, target in zip(images.split(step), wanted.split(step), strict=True):  # type: ignore[no-untyped-call]
                rows = target.unflatten(2, (-1, last)).permute(1, 3, 2, 0)  # [C, last, others, N]
                rows = rows.reshape(groups, channels // groups, last, -1)
                if geometry.slides:
                    columns = geometry.unfold_but_last(part)  # [C_in * other taps, last, others * N]
                    moments.update_sliding(columns.view(groups, -1, *columns.shape[1:]), rows)
                else:
                    columns = geometry.unfold(part, geometry.every_tap())  # [C_in * taps, P * N]
                    moments.update(columns.view(groups, filter_size, -1), rows.flatten(2))
        if not moments.finite:
            raise InputError(
                f"layer {self.layer.name!r} is given or gives nan, inf or numbers too large to square, on the "
                "calibration images: nothing can be fitted to them"
            )
        return moments


def _wide(x: Tensor) -> Tensor:
    """Half precision as float32, in which sums of squares neither overflow nor lose their last bits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


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

    `layers` are those of `repaired`. Where a layer's branch is added to another (a shortcut), the output that is wanted
    also makes up for the error the other branch carries already:
    y_dense + (other_dense - other_repaired) * sqrt(running_var + eps) / weight, in channels with |weight| >= 1e-3
    (`shortcuts=False`: y_dense everywhere; so too behind a BatchNorm that serves other layers).
    A network that calls a layer several times is run once per layer instead, and without that correction; so is, from
    where it happens on, one whose ways part (experts that are chosen sample by sample).
    A layer that is never reached is an error; with `needed`, only one of these, and the others are passed over.
    """
    batches = list(calibration.first(repaired, images, _BATCH))
    wholes = layers.on(dense)
    way = trace(dense, wholes, batches[0], forward=calibration.forward, needed=needed)
    norms = {layer: repaired.get_submodule(norm) for layer, norm in way.own_norms.items()}
    known = {n: join for n, join in way.joins.items() if join.layer in norms or join.layer not in way.norms}
    joins = known if shortcuts else {}
    joined = {join.layer for join in joins.values()}
    repeated, done = any(calls > 1 for calls in way.calls.values()), 0
    reached = layers.subset(way.order)
    with (
        streams(
            dense, [] if repeated else batches, reached, joins, before=False, forward=calibration.forward
        ) as theirs,
        streams(
            repaired, [] if repeated else batches, reached, joins, before=True, forward=calibration.forward
        ) as ours,
    ):
        for name in track(() if repeated else way.order, "layer by layer", len(way.order)):
            norm = norms.get(name)
            halts = [
                _side_by_side(name, their, our, norm, name in joined) for their, our in zip(theirs, ours, strict=True)
            ]
            steady = [halt for halt in halts if halt is not None]
            if len(steady) < len(halts):
                break
            yield Station(layers[name], wholes[name], norm, [(call, wanted) for call, wanted, _ in steady])
            # these passes stand behind the layer already, with what it gave before it was written
            for call, _, branch in steady:
                if branch is not None:
                    again = call.compute()
                    branch.copy_(again if norm is None else _normalised(again, norm))
            done += 1
    for name in track(way.order[done:], "layer by layer", len(way.order) - done):
        pairs = _pairs(dense, repaired, layers[name], wholes[name], calibration, batches)
        yield Station(layers[name], wholes[name], norms.get(name), pairs)


def _side_by_side(
    name: str, their: Stream, our: Stream, norm: nn.Module | None, joined: bool
) -> tuple[Call, Tensor, Tensor | None] | None:
    """Both passes at this layer: its product in the repaired network, the output that is wanted of it, and the branch
    that it is, where it is added to another. None where a pass takes another way.
    """
    there, here = their.advance(), our.advance()
    if there is None or here is None or not there.layer == here.layer == name:
        return None
    call, wanted = here.call, there.output
    if call is None or wanted is None or there.call is None or call.x.shape != there.call.x.shape:
        return None
    if not joined:
        return call, wanted, None
    there, here = their.advance(), our.advance()
    if there is None or here is None or there.other is None or here.other is None:
        return None
    return call, wanted + _correction(there.other - here.other, norm, call), here.branch


def _correction(error: Tensor, norm: nn.Module | None, call: Call) -> Tensor:
    """The error of the other branch in units of the layer's own output."""
    if norm is None:
        return error
    scale = _norm_scale(norm)
    flat = _norm_weight(norm).abs() < _FLAT
    factor = torch.where(flat, torch.zeros_like(scale), 1 / torch.where(flat, torch.ones_like(scale), scale))
    return error * call.along(factor)


def _norm_weight(norm: nn.Module) -> Tensor:
    var: Tensor = norm.running_var  # type: ignore[assignment]
    weight: Tensor | None = norm.weight  # type: ignore[assignment]
    return torch.ones_like(var) if weight is None else weight.detach()


def _norm_scale(norm: nn.Module) -> Tensor:
    var: Tensor = norm.running_var  # type: ignore[assignment]
    return _norm_weight(norm) / (var + norm.eps).sqrt()  # type: ignore[operator]


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
) -> list[tuple[Call, Tensor]]:
    """Every product of a layer with the output that is wanted: the dense network's of the same call. Where the two
    networks call it otherwise, what the dense weights make of the input at hand; where the repaired one never reaches
    it, what the dense one does.
    """
    theirs, ours = _calls(dense, whole, calibration, batches), _calls(repaired, layer, calibration, batches)
    if [call.x.shape for call, _ in theirs] == [call.x.shape for call, _ in ours]:
        return [(call, wanted) for (_, wanted), (call, _) in zip(theirs, ours, strict=True)]
    if not ours:
        return theirs
    with torch.no_grad():
        now = layer.weight.clone()
        layer.weight.copy_(whole.weight)
        wanted = [call.compute() for call, _ in ours]
        layer.weight.copy_(now)
    return [(call, output) for (call, _), output in zip(ours, wanted, strict=True)]


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
