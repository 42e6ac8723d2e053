"""Station: a layer on its way through a network under repair, what it is given and what it should give."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from repairability.algebra.least_squares import LeastSquares
from repairability.algebra.moments import InputMoments
from repairability.algebra.targets import Targets, blocked
from repairability.errors import InputError
from repairability.network.calls import Call
from repairability.network.flat import Flat
from repairability.network.layers import Layer

_COLUMNS = 2**24
"""Input columns are laid out for so many values at a time: 64 MB in float32."""

_DRAWN = 2**26
"""At most so many values of input columns are drawn and held: 256 MB in float32."""

WIDEST = 5120
"""Filters with more inputs than this are fitted in blocks of them: a Gram of so many is 200 MB in float64."""

FLAT_NORM = 1e-3
"""A BatchNorm channel with a smaller weight passes nothing on."""


class Pair(NamedTuple):
    """A product of a layer, the output that is wanted of it, and what its branch is added to, where it is."""

    call: Call
    wanted: Tensor
    other: Tensor | None = None


@dataclass(frozen=True)
class Station:
    """A layer of the network under repair: its products with the output that is wanted of each, the same layer of the
    dense network, the BatchNorm that takes this layer's output and no other's, and the activation with flat ends behind
    both and behind the sum with another branch.
    """

    layer: Layer
    dense: Layer
    norm: nn.Module | None
    pairs: Sequence[Pair]
    flat: Flat | None = None

    @property
    def bias_place(self) -> Tensor | None:
        """The layer's bias, where one can be written."""
        return self.pairs[0].call.bias_place

    @property
    def shifts(self) -> bool:
        """Whether a shift of an output has a place: the layer's bias, or the running mean of its own BatchNorm."""
        return self.norm is not None or self.bias_place is not None

    def problem(self, moments: InputMoments) -> LeastSquares:
        """The layer's least squares: dense weights, and a step of an output worth |weight| / sqrt(running_var + eps) of
        the BatchNorm behind it.
        """
        unit = torch.ones(self.layer.outputs, dtype=torch.float64)
        if self.norm is not None:
            unit = norm_scale(self.norm).abs().double().cpu()
        blocks = moments.groups // self.layer.groups
        weights = blocked(self.dense.filters().double().cpu(), blocks)
        units = unit.view(self.layer.groups, -1).repeat_interleave(blocks, 0)
        return LeastSquares.of(moments, weights, units, centred=self.shifts, blocks=blocks)

    def moments(self) -> InputMoments:
        groups, channels = self.layer.groups, self.layer.outputs
        filter_size = self.layer.total // channels
        moments = InputMoments(groups, filter_size, channels // groups)
        for call, y, _ in self.pairs:
            geometry = call.geometry
            images, wanted = _wide(call.inputs()), _product(call, y)  # [N, C_in, ...], [N, C, P]
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
        return self.checked(moments)

    def checked(self, moments: InputMoments) -> InputMoments:
        if not moments.finite:
            raise InputError(
                f"layer {self.layer.name!r} is given or gives nan, inf or numbers too large to square, on the "
                "calibration images: nothing can be fitted to them"
            )
        return moments

    def targets(self, budget: float, seed: int, *, widest: int = WIDEST) -> Targets:
        """Input columns and the outputs wanted for them at some positions of every image, drawn by the seed: `budget`
        columns for each input of a filter (or as many as there are, or fit). Images of one batch share their positions.
        Filters with more inputs than `widest` come in blocks of these, and then without ends.
        """
        groups, channels = self.layer.groups, self.layer.outputs
        filter_size = self.layer.total // channels
        most = min(budget * filter_size, _DRAWN // (groups * filter_size))
        images = sum(len(pair.call.channels(pair.wanted)) for pair in self.pairs)
        draw = torch.Generator().manual_seed(seed + zlib.crc32(self.layer.name.encode()))
        columns, outputs, lows, highs = [], [], [], []
        for call, wanted, other in self.pairs:
            y = _product(call, wanted)  # [N, C, P]
            count = min(y.shape[2], max(1, round(most / images)))
            places = torch.randperm(y.shape[2], generator=draw)[:count].sort().values.to(y.device)
            columns.append(call.geometry.columns_at(_wide(call.inputs()), places))
            outputs.append(_at(y, places))
            if self.flat is not None and self.flat.summed and other is not None:
                low, high = self._ends(self.flat, _at(_wide(call.channels(other)), places))
                lows.append(low)
                highs.append(high)

        def grouped(parts: list[Tensor]) -> Tensor:
            whole = torch.cat(parts, -1)
            return whole.view(groups, -1, whole.shape[-1])

        x, y = grouped(columns), grouped(outputs)
        blocks = _blocks(filter_size, self.layer.name, widest)
        if blocks > 1:
            return Targets(x, y).in_blocks(self.dense.filters(), blocks)
        if self.flat is not None and not self.flat.summed:  # the same ends everywhere
            low, high = self._ends(self.flat, None)
            return Targets(x, y, grouped([low]), grouped([high]))
        return Targets(x, y, grouped(lows), grouped(highs)) if len(lows) == len(self.pairs) else Targets(x, y)

    def _ends(self, flat: Flat, other: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outputs below and above which nothing is felt [C, M] or [C, 1]: a norm scales by s and shifts by t, then
        the other branch is added: low <= s y + t + other <= high.
        """
        channels = self.layer.outputs
        if self.norm is None:
            scale = torch.ones(channels, device=self.layer.weight.device)
            shift = torch.zeros_like(scale)
        else:
            scale = norm_scale(self.norm)
            mean: Tensor = self.norm.running_mean  # type: ignore[assignment]
            beta: Tensor | None = self.norm.bias  # type: ignore[assignment]
            shift = -scale * mean if beta is None else beta.detach() - scale * mean
        bias = fixed_bias(self.pairs[0].call)
        if bias is not None:
            shift = shift + scale * bias
        scale, before = scale[:, None], shift[:, None] if other is None else shift[:, None] + other
        dead = scale.abs() < torch.finfo(scale.dtype).tiny
        safe = torch.where(dead, torch.ones_like(scale), scale)
        ends = [(end - before) / safe for end in (flat.low, flat.high)]
        infinite = torch.full_like(ends[0], torch.inf)
        low, high = (torch.where(scale > 0, a, b) for a, b in (ends, ends[::-1]))
        return torch.where(dead, -infinite, low), torch.where(dead, infinite, high)


def _blocks(inputs: int, layer: str, widest: int) -> int:
    """Into how many equal blocks the inputs of a filter are cut, so that none is wider; not at all where there is no
    such number and a Gram of them all fits.
    """
    counts = range(-(-inputs // widest), inputs // 64 + 1)
    blocks = next((count for count in counts if inputs % count == 0), None)
    if inputs <= widest or (blocks is None and inputs <= WIDEST):
        return 1
    if blocks is None:
        raise InputError(
            f"the filters of layer {layer!r} have {inputs:,} inputs, more than {WIDEST:,}, and cannot be cut into "
            "equal blocks: skip it, or repair without a fit"
        )
    return blocks


def fixed_bias(call: Call) -> Tensor | None:
    """A bias that no shift can be written into: it stays, whatever is fitted."""
    return None if call.bias is None or call.bias_place is not None else call.bias.detach()


def _product(call: Call, output: Tensor) -> Tensor:
    """[N, C, P] of an output: what the weights have to give, and the shift that can be written."""
    values, bias = _wide(call.channels(output)), fixed_bias(call)
    return values if bias is None else values - bias[:, None]


def _at(values: Tensor, places: Tensor) -> Tensor:
    """[N, C, P] -> [C, places * N], the sample fastest, as the columns."""
    return values[:, :, places].permute(1, 2, 0).reshape(values.shape[1], -1)


def _wide(x: Tensor) -> Tensor:
    """Half precision as float32, in which sums of squares neither overflow nor lose their last bits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def norm_weight(norm: nn.Module) -> Tensor:
    var: Tensor = norm.running_var  # type: ignore[assignment]
    weight: Tensor | None = norm.weight  # type: ignore[assignment]
    return torch.ones_like(var) if weight is None else weight.detach()


def norm_scale(norm: nn.Module) -> Tensor:
    var: Tensor = norm.running_var  # type: ignore[assignment]
    return norm_weight(norm) / (var + norm.eps).sqrt()  # type: ignore[operator]
