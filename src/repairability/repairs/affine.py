"""Affine: each channel is scaled and shifted to what the dense layer gave."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from repairability.algebra.sums import ChannelSums
from repairability.errors import InputError
from repairability.network.layers import Layers
from repairability.repairs.repair import Repair, RepairContext
from repairability.repairs.response import Response
from repairability.repairs.station import Station, fixed_bias
from repairability.repairs.walk import walk

MATCHES = ("least_squares", "moments")

_EMPTY = 1e-24
"""A channel with less than this fraction of the dense one's energy (a millionth millionth of its amplitude) is empty:
it is not scaled.
"""

_VALUES = 2**22
"""Outputs are summed up so many values at a time."""


@dataclass(frozen=True)
class AffineRepair(Repair):
    """y = g b + h per channel, b the pruned layer's output and a the one wanted of it, with means and variances pooled
    over samples and positions:

    least_squares: g = cov(a, b) / var(b), the least E(a - g b - h)^2; moments: g = sd(a) / sd(b), a and y have the same
    mean and variance; h = E a - g E b in both. A channel with var(b) = 0 (an empty filter) keeps g = 1.

    g scales the filter. h goes into the layer's bias, else into the running mean of the BatchNorm that takes this
    layer's output alone. Where there is neither, the best scale without a shift: g = E[a b] / E[b^2], or
    sqrt(E[a^2] / E[b^2]), of what the weights give: a and b without a bias that is computed, which stays.

    Layer by layer on the statistics' images, each measured with everything upstream already repaired. For least squares
    the output that is wanted also makes up for the error of the branch a layer is added to (`walk`); moments are those
    of the dense layer: an error in a has no place in a variance that is to be matched.
    """

    match: str = "least_squares"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.match not in MATCHES:
            raise InputError(f"match must be one of {', '.join(MATCHES)}, not {self.match!r}")

    def respond(self, response: Response) -> Response:
        """y -> g y + h. With a bias that is g (y - bias) + bias', where bias' = g bias + h; bias' = bias where no shift
        has a place.
        """
        a, y = response.dense.mean, response.mean
        if response.shifts:
            scale = self._scale(response.dense.var, response.var, response.cov)
            shift = a - scale * y
        else:
            a, y = a - response.bias, y - response.bias
            energies = response.dense.var + a.square(), response.var + y.square()
            scale = self._scale(*energies, response.cov + a * y)
            shift = (1 - scale) * response.bias
        return replace(response, gain=scale * response.gain, offset=scale * response.offset + shift)

    def _scale(self, dense: Tensor, pruned: Tensor, product: Tensor) -> Tensor:
        """From second moments, central or not."""
        live = pruned > _EMPTY * dense
        energy = torch.where(live, pruned, 1.0)
        scale = product / energy if self.match == "least_squares" else (dense / energy).sqrt()
        return torch.where(live, scale, 1.0)

    def notes(self, model: nn.Module, lost: Layers) -> tuple[str, ...]:
        return (
            f"{self.name} scales the filters of {len(lost)} layers and shifts their channels where there is a place",
        )

    def __call__(self, context: RepairContext) -> None:
        calibration = context.calibration
        for station in walk(
            context.dense,
            context.model,
            context.layers,
            calibration,
            images=calibration.count,
            shortcuts=self.match == "least_squares",
        ):
            bias, running = _places(station)
            shifts = bias is not None or running is not None
            sums = _measured(station)
            own = bias if bias is not None else fixed_bias(station.pairs[0].call)
            start = torch.zeros(sums.channels, dtype=torch.float64) if own is None else own.double().cpu()
            end = self.respond(Response.begin(sums, start, None, shifts=shifts))
            scale, shift = end.gain[0], end.offset[0]
            layer = station.layer
            layer.write_(layer.filters().double().cpu() * scale.view(layer.groups, -1, 1))
            with torch.no_grad():
                if bias is not None:
                    _write_(bias, scale * start + shift)
                elif running is not None:
                    _write_(running, running.double().cpu() - shift - (scale - 1) * start)


def _places(station: Station) -> tuple[Tensor | None, Tensor | None]:
    """Where a shift can go: the layer's bias, or the running mean of its own BatchNorm."""
    running: Tensor | None = None if station.norm is None else station.norm.running_mean  # type: ignore[assignment]
    return station.bias_place, running


def _measured(station: Station) -> ChannelSums:
    """The sums over a, the output that is wanted, and b, the one there is."""
    sums = ChannelSums(1, station.layer.outputs)
    for call, wanted, _ in station.pairs:
        with torch.no_grad():
            given = call.channels(call.compute())
        a = call.channels(wanted)
        step = max(1, _VALUES // max(1, a[0].numel()))
        for dense, pruned in zip(a.split(step), given.split(step), strict=True):  # type: ignore[no-untyped-call]
            sums.update(dense, pruned[None])
    return sums


def _write_(target: Tensor, values: Tensor) -> None:
    target.copy_(values.to(target.device, target.dtype))
