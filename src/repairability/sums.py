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
class Moments:
    """Pooled mean and biased variance per channel, over all samples and positions: float64, [C] or [K, C]."""

    mean: Tensor
    var: Tensor
    count: int


class ChannelSums:
    """Sums over samples of one layer: its dense output a, and its outputs b_k at K pruning levels.

    With A = |a|^2, AB = <a, b>, BB = |b|^2 over the positions of one sample and channel and w = 1 / (A + eps), it
    keeps the weighted sums  wA, wa, wp [C]  and  wAB, wBB, wb [K, C]  (a, b, p: the sums of a, of b, the number of
    positions), from which the distance of any per-channel affine repair follows, and the unweighted sums of a, a^2,
    b, b^2 for pooled moments. With `scale` and `shift` [C] the weighted sums are those of scale * a + shift and
    scale * b + shift (the activations behind a BatchNorm); the moments stay those of a and b.

    All in float64: the same activations give the same sums to 1e-9, whatever the split, order or merge.
    """

    WEIGHTED = ("wA", "wa", "wp", "wAB", "wBB", "wb")
    PLAIN = ("a", "aa", "b", "bb")

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

    def update(self, dense: Tensor, pruned: Tensor | None = None) -> None:
        """Add a batch: `dense` [N, C, P] and `pruned` [K, N, C, P] (none when there are no levels)."""
        if dense.dim() != 3 or dense.shape[1] != self.channels:
            raise InputError(f"dense activations must be [N, {self.channels}, P], not {tuple(dense.shape)}")
        if pruned is None:
            pruned = dense.new_empty((0, *dense.shape))
        if pruned.shape != (self.levels, *dense.shape):
            raise InputError(f"pruned activations must be {(self.levels, *dense.shape)}, not {tuple(pruned.shape)}")
        samples, _, positions = dense.shape
        # Samples last: then the sums over positions add whole rows, which is what vector units like.
        a64 = dense.permute(1, 2, 0).double().contiguous()  # [C, P, N]
        a, aa = _on_cpu(a64.sum(1), a64.square().sum(1))  # [N, C]
        b, ab, bb = (torch.empty((self.levels, samples, self.channels), dtype=torch.float64) for _ in range(3))
        product = torch.empty_like(a64)
        for level, of_level in enumerate(pruned.permute(0, 2, 3, 1)):
            b64 = of_level.double()
            b[level], ab[level], bb[level] = _on_cpu(
                b64.sum(1), torch.mul(a64, b64, out=product).sum(1), torch.mul(b64, b64, out=product).sum(1)
            )

        self.samples += samples
        self.count += samples * positions
        self.a += a.sum(0)
        self.aa += aa.sum(0)
        self.b += b.sum(1)
        self.bb += bb.sum(1)

        s, t = self.scale, self.shift  # of s*x + t, from the sums of x
        ab = s * s * ab + s * t * (a + b) + t * t * positions
        bb = s * s * bb + 2 * s * t * b + t * t * positions
        aa = s * s * aa + 2 * s * t * a + t * t * positions
        a, b = s * a + t * positions, s * b + t * positions
        w = 1 / (aa + EPS)
        self.wA += (w * aa).sum(0)
        self.wa += (w * a).sum(0)
        self.wp += (w * positions).sum(0)
        self.wAB += (w * ab).sum(1)
        self.wBB += (w * bb).sum(1)
        self.wb += (w * b).sum(1)

    def merge(self, other: ChannelSums) -> None:
        """Add what another pass (over other images) summed up."""
        if (self.levels, self.channels) != (other.levels, other.channels) or not (
            torch.equal(self.scale, other.scale) and torch.equal(self.shift, other.shift)
        ):
            raise InputError("only sums of the same layer, levels and observation can be merged")
        self.samples += other.samples
        self.count += other.count
        for name in (*self.WEIGHTED, *self.PLAIN):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def dense_moments(self) -> Moments:
        """Of the dense output, [C]."""
        return _moments(self.a, self.aa, self.count)

    def pruned_moments(self) -> Moments:
        """Of the output at each level, [K, C]."""
        return _moments(self.b, self.bb, self.count)

    def distance(self, gain: Tensor | float = 1.0, offset: Tensor | float = 0.0) -> Tensor:
        """d(a, gain * b + offset) [K], gain and offset [K, C], in the space the weighted sums live in.

        The mean over samples of the mean over channels of |a - g b - h|^2 / (|a|^2 + eps), where
        |a - g b - h|^2 = A - 2g AB + g^2 BB - 2h a + 2gh b + h^2 positions. Rounding below 0 is cut off.
        """
        g, h = gain, offset
        per_channel = (
            self.wA - 2 * g * self.wAB + g * g * self.wBB - 2 * h * self.wa + 2 * g * h * self.wb + h * h * self.wp
        )
        return per_channel.clamp(min=0).mean(-1) / max(1, self.samples)


def _moments(total: Tensor, squares: Tensor, count: int) -> Moments:
    mean, mean_square = total / max(1, count), squares / max(1, count)
    var = mean_square - mean.square()
    return Moments(mean, torch.where(var > _NO_VARIANCE * mean_square, var, 0.0), count)


def _on_cpu(*tensors: Tensor) -> list[Tensor]:
    """[C, N] sums -> [N, C], where the small bookkeeping happens."""
    return [tensor.t().cpu() for tensor in tensors]
