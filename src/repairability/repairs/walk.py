"""Layer by layer through the dense and the repaired network: what each layer is given, and what it should give."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repairability._torch import evaluating, output_hooks, run
from repairability.algebra.moments import InputMoments, LeastSquares, filters_of
from repairability.calibration import CalibrationSet
from repairability.errors import InputError
from repairability.network.layers import Layer, Layers, bias_of
from repairability.network.streams import streams
from repairability.network.trace import Trace, trace
from repairability.network.unfold import Geometry
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
    """A layer of the network under repair: batches of its input x with the output that is wanted of it, and the
    BatchNorm that takes this layer's output and no other's.
    """

    layer: Layer
    module: nn.Module
    norm: nn.Module | None
    pairs: Sequence[tuple[Tensor, Tensor]]

    def problem(self, dense: nn.Module, moments: InputMoments) -> LeastSquares:
        """The layer's least squares: dense weights, and a step of an output worth |weight| / sqrt(running_var + eps) of
        the BatchNorm behind it.
        """
        weight = dense.get_submodule(self.layer.name).get_parameter("weight")
        unit = torch.ones(self.layer.shape[0], dtype=torch.float64)
        if self.norm is not None:
            unit = _norm_scale(self.norm).abs().double().cpu()
        has_shift = self.norm is not None or bias_of(self.module) is not None
        return LeastSquares.of(moments, filters_of(weight, self.groups), unit.view(self.groups, -1), centred=has_shift)

    @property
    def groups(self) -> int:
        return int(getattr(self.module, "groups", 1))

    def moments(self) -> InputMoments:
        geometry, channels = Geometry.of(self.layer.name, self.module), self.layer.shape[0]
        groups, filter_size = self.groups, self.layer.total // channels
        moments = InputMoments(groups, filter_size, channels // groups)
        for x, y in self.pairs:
            images, wanted = geometry.batched(_wide(x)), self.layer.channels(_wide(y))  # [N, C_in, ...], [N, C, P]
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
    A network that calls a layer several times is run once per layer instead, and without that correction.
    A layer that is never reached is an error; with `needed`, only one of these, and the others are passed over.
    """
    batches = list(calibration.first(repaired, images, _BATCH))
    way = trace(repaired, layers, batches[0], needed=needed)
    norms = {layer: repaired.get_submodule(norm) for layer, norm in way.own_norms.items()}
    if any(calls > 1 for calls in way.calls.values()):
        yield from _pass_per_layer(dense, repaired, layers, batches, way, norms)
        return
    known = {n: join for n, join in way.joins.items() if join.layer in norms or join.layer not in way.norms}
    joins = known if shortcuts else {}
    joined = {join.layer for join in joins.values()}
    with (
        streams(dense, batches, way.order, joins, before=False) as theirs,
        streams(repaired, batches, way.order, joins, before=True) as ours,
    ):
        for name in track(way.order, "layer by layer", len(way.order)):
            module, norm = repaired.get_submodule(name), norms.get(name)
            pairs, branches = [], []
            for their, our in zip(theirs, ours, strict=True):
                wanted, given = their.advance().tensor, our.advance().tensor
                if name in joined:
                    there, here = their.advance(), our.advance()
                    wanted = wanted + _correction(there.other, here.other, norm, layers[name])
                    branches.append(here.tensor)
                pairs.append((given, wanted))
            yield Station(layers[name], module, norm, pairs)
            # these passes stand behind the layer already, with what it gave before it was written
            for branch, (given, _) in zip(branches, pairs, strict=bool(branches)):
                again = module.forward(given)
                branch.copy_(again if norm is None else norm.forward(again))


def _correction(there: Tensor | None, here: Tensor | None, norm: nn.Module | None, layer: Layer) -> Tensor:
    """The error of the other branch in units of the layer's own output."""
    assert there is not None
    assert here is not None
    error = there - here
    if norm is None:
        return error
    scale = _norm_scale(norm)
    flat = _norm_weight(norm).abs() < _FLAT
    factor = torch.where(flat, torch.zeros_like(scale), 1 / torch.where(flat, torch.ones_like(scale), scale))
    return error * factor.view((-1,) if layer.kind == "linear" else (-1, *[1] * (error.dim() - 2)))


def _norm_weight(norm: nn.Module) -> Tensor:
    var: Tensor = norm.running_var  # type: ignore[assignment]
    weight: Tensor | None = norm.weight  # type: ignore[assignment]
    return torch.ones_like(var) if weight is None else weight.detach()


def _norm_scale(norm: nn.Module) -> Tensor:
    var: Tensor = norm.running_var  # type: ignore[assignment]
    return _norm_weight(norm) / (var + norm.eps).sqrt()  # type: ignore[operator]


def _pass_per_layer(
    dense: nn.Module,
    repaired: nn.Module,
    layers: Layers,
    batches: Sequence[Tensor],
    way: Trace,
    norms: dict[str, nn.Module],
) -> Iterator[Station]:
    for name in track(way.order, "layer by layer", len(way.order)):
        calls = [_calls(model, name, batches) for model in (dense, repaired)]
        pairs = [(given, wanted) for (_, wanted), (given, _) in zip(*calls, strict=True)]
        yield Station(layers[name], repaired.get_submodule(name), norms.get(name), pairs)


def _calls(model: nn.Module, name: str, batches: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Input and output of every call of a layer."""
    calls: list[tuple[Tensor, Tensor]] = []

    def hook(module: nn.Module, x: Tensor, output: Tensor) -> None:
        calls.append((x, output))

    with evaluating(model), output_hooks({model.get_submodule(name): hook}):
        for batch in batches:
            run(model, batch)
    return calls
