"""ChannelSums: everything the diagnostics need of a layer's activations, as sums that never grow with the images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from repairability.errors import InputError

EPS = 1e-8
"""The paper's numerical constant, throughout."""

_NO_VARIANCE = 1e-13
"""A variance below this fraction of the mean square is rounding: the channel is constant, its variance is 0."""


@dataclass(frozen=True)
class OutputMoments:
    """Pooled mean and biased variance per channel, over all samples and positions: float64, [C] or [K, C]."""

    mean: Tensor
    var: Tensor
    count: int


class ChannelSums:
    """Sums over samples of one layer: its dense output a, and its outputs b_k at K pruning levels.

    With A = |a|^2, AB = <a, b>, BB = |b|^2 over the positions of one sample and channel and w = 1 / (A + eps), it
    keeps the weighted sums  wA, wa, wp [C]  and  wAB, wBB, wb [K, C]  (a, b, p: the sums of a, of b, the number of
    positions), from which the distance of any per-channel affine repair follows, and the unweighted sums of a, a^2,
    b, b^2 and a b for pooled moments. With `scale` and `shift` [C] the weighted sums are those of scale * a + shift and
    scale * b + shift (the activations behind a BatchNorm); the moments stay those of a and b.

    All in float64: the same activations give the same sums to 1e-9, whatever the split or order.
    """

    WEIGHTED = ("wA", "wa", "wp", "wAB", "wBB", "wb")
    PLAIN = ("a", "aa", "b", "bb", "ab")

    def __init__(self, levels: int, channels: int, *, scale: Tensor | None = None, shift: Tensor | None = None) -> None:
        self.levels, self.channels = levels, channels
        self.scale = torch.ones(channels, dtype=torch.float64) if scale is None else scale.double().cpu()
        self.shift = torch.zeros(channels, dtype=torch.float64) if shift is None else shift.double().cpu()
        self.samples = 0
        self.count = 0  # pooled values per channel
        for name in (*self.WEIGHTED, *self.PLAIN):
            of_levels = "b" in name.lower()
            shape = (levels, channels) if of_levels else (channels,)
            setattr(self, name, torch.zeros(shape, dtype=torch.float64))

    wA: Tensor
    wa: Tensor
    wp: Tensor
    wAB: Tensor
    wBB: Tensor
    wb: Tensor
    a: Tensor
    aa: Tensor
    b: Tensor
    bb: Tensor
    ab: Tensor

    def update(self, dense: Tensor, pruned: Tensor | None = None) -> None:
        """Add a batch: `dense` [N, C, P] and `pruned` [K, N, C, P] (none when there are no levels)."""
        if dense.dim() != 3 or dense.shape[1] != self.channels:
            raise InputError(f"dense activations must be [N, {self.channels}, P], not {tuple(dense.shape)}")
        if pruned is None:
            pruned = dense.new_empty((0, *dense.shape))
        if pruned.shape != (self.levels, *dense.shape):
            raise InputError(f"pruned activations must be {(self.levels, *dense.shape)}, not {tuple(pruned.shape)}")
        samples, _, positions = dense.shape
        # Per channel, values [P * N] with the samples fastest; the dense output is one more row beside the levels. The
        # weight of a sample is known from the dense output alone, so every sum over samples and positions is an inner
        # product: of the rows with w*a, a, w and 1, and of their squares with w and 1.
        rows = dense.new_empty((self.levels + 1, self.channels, positions, samples), dtype=torch.float64)
        rows[:-1] = pruned.permute(0, 2, 3, 1)
        rows[-1] = dense.permute(1, 2, 0)
        a = rows[-1]  # [C, P, N]
        s, t = (x.to(a.device)[:, None] for x in (self.scale, self.shift))
        observed_square = s * s * (a * a).sum(1) + 2 * s * t * a.sum(1) + t * t * positions  # of s*a + t, [C, N]
        w = 1 / (observed_square + EPS)

        against = a.new_ones((self.channels, 4, positions, samples))
        torch.mul(a, w[:, None], out=against[:, 0])
        against[:, 1] = a
        against[:, 2] = w[:, None]
        against = against.view(self.channels, 4, -1).transpose(1, 2)  # [C, P * N, 4]
        flat = rows.view(self.levels + 1, self.channels, -1).transpose(0, 1)  # [C, K + 1, P * N]
        wab, ab, wb, totals = (flat @ against).permute(2, 1, 0)  # each [K + 1, C]
        wbb, squares = (torch.mul(flat, flat, out=flat) @ against[:, :, 2:]).permute(2, 1, 0)
        wa, wp = wb[-1], positions * w.sum(1)

        self.samples += samples
        self.count += samples * positions
        s, t = s[:, 0], t[:, 0]  # of s*x + t, from the sums of x
        sums = {
            "a": totals[-1],
            "aa": squares[-1],
            "b": totals[:-1],
            "bb": squares[:-1],
            "ab": ab[:-1],
            "wA": s * s * wbb[-1] + 2 * s * t * wa + t * t * wp,
            "wAB": s * s * wab[:-1] + s * t * (wa + wb[:-1]) + t * t * wp,
            "wBB": s * s * wbb[:-1] + 2 * s * t * wb[:-1] + t * t * wp,
            "wa": s * wa + t * wp,
            "wb": s * wb[:-1] + t * wp,
            "wp": wp,
        }
        for name, value in sums.items():
            setattr(self, name, getattr(self, name) + value.cpu())

    def dense_moments(self) -> OutputMoments:
        """Of the dense output, [C]."""
        return _moments(self.a, self.aa, self.count)

    def pruned_moments(self) -> OutputMoments:
        """Of the output at each level, [K, C]."""
        return _moments(self.b, self.bb, self.count)

    def cross_moment(self) -> Tensor:
        """The pooled mean of a b at each level, [K, C]."""
        return self.ab / max(1, self.count)

    def distance(self, gain: Tensor | float = 1.0, offset: Tensor | float = 0.0) -> Tensor:
        """d(a, gain * b + offset) (eq:distance) [K], gain and offset [K, C], in the space the weighted sums live in.

        The mean over samples of the mean over channels of |a - g b - h|^2 / (|a|^2 + eps), where
        |a - g b - h|^2 = A - 2g AB + g^2 BB - 2h a + 2gh b + h^2 positions. Rounding below 0 is cut off.
        """
        g, h = gain, offset
        per_channel = (
            self.wA - 2 * g * self.wAB + g * g * self.wBB - 2 * h * self.wa + 2 * g * h * self.wb + h * h * self.wp
        )
        return per_channel.clamp(min=0).mean(-1) / max(1, self.samples)


def _moments(total: Tensor, squares: Tensor, count: int) -> OutputMoments:
    mean, mean_square = total / max(1, count), squares / max(1, count)
    var = mean_square - mean.square()
    return OutputMoments(mean, torch.where(var > _NO_VARIANCE * mean_square, var, 0.0), count)
