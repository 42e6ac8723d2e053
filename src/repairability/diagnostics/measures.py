"""raw, residual and rr as formulae over the sums."""

from __future__ import annotations

import torch
from torch import Tensor

from repairability.algebra.sums import EPS, ChannelSums
from repairability.repairs.repair import Repair
from repairability.repairs.response import Norm, Response


def measures(
    sums: ChannelSums, bias: Tensor, norm: Norm | None, repair: Repair, *, shifts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(raw, residual, rr) [K]: d(a, b) (eq:raw_shift), d(a, repaired) (eq:repair_residual), and the ratio
    (residual + eps) / (raw + eps) (eq:repair_ratio).

    Without a norm, a and b are the layer's own outputs (a shift that a repair writes into the running mean of a norm
    counts among them: it stands in for a bias; `shifts` as in `Response`). With one they are what comes out of it:
    dense and pruned pass the dense statistics, the repaired passes the statistics that the repair leaves there.
    """
    raw = sums.distance()
    residual = sums.distance(*mended_channels(sums, bias, norm, repair, shifts=shifts))
    return raw, residual, (residual + EPS) / (raw + EPS)


def mended_channels(
    sums: ChannelSums, bias: Tensor, norm: Norm | None, repair: Repair, *, shifts: bool
) -> tuple[Tensor, Tensor]:
    """What a repair makes of each channel at each level, [K, C] each: gain * b + offset, b the pruned output where it
    is observed.
    """
    end = repair.respond(Response.begin(sums, bias, norm, shifts=shifts))
    gain, offset = end.gain, end.offset
    if norm is not None and end.norm is not None:
        # The sums are those of b' = s b + t. The repaired output is s' (g b + h) + t' with the new statistics, so in
        # terms of b' its gain is s' g / s. A channel with s = 0 is constant, before and after: gain 1, offset 0.
        s, t = norm.scale(), norm.shift()
        new_s, new_t = end.norm.scale(), end.norm.shift()
        gain = torch.where(s != 0, new_s * end.gain / torch.where(s != 0, s, 1.0), 1.0)
        offset = torch.where(s != 0, new_s * end.offset + new_t - gain * t, 0.0)
    return gain, offset
