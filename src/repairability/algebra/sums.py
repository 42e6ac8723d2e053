"""ChannelSums: everything the diagnostics need of a layer's activations, as sums that never grow with the images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from repairability.algebra.scratch import Scratch
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

    Over the positions of one sample and channel five sums are taken: of a and a^2, and of b, b^2 and a b at each level.
    `plain` adds them up over the samples, for pooled moments; `weighed` adds them up times w = 1 / (|a|^2 + eps) of
    their sample and channel, and `wp` adds up w times the number of positions: from these follows the distance of any
    per-channel affine repair. With `scale` and `shift` [C] distances are those of scale * a + shift and
    scale * b + shift (the activations behind a BatchNorm), w included; the moments stay those of a and b.

    All in float64: the same activations give the same sums to 1e-9, whatever the split or order.
    """

    def __init__(self, levels: int, channels: int, *, scale: Tensor | None = None, shift: Tensor | None = None) -> None:
        self.levels, self.channels = levels, channels
        self.scale = torch.ones(channels, dtype=torch.float64) if scale is None else scale.double().cpu()
        self.shift = torch.zeros(channels, dtype=torch.float64) if shift is None else shift.double().cpu()
        self.mapped = scale is not None or shift is not None
        self.samples = 0
        self.count = 0  # pooled values per channel
        self.plain = torch.zeros(2 + 3 * levels, channels, dtype=torch.float64)  # a, a^2, each b, each b^2, each a b
        self.weighed = torch.zeros_like(self.plain)
        self.wp = torch.zeros(channels, dtype=torch.float64)

    def update(
        self, dense: Tensor, pruned: Tensor | Iterable[Tensor] | None = None, scratch: Scratch | None = None
    ) -> None:
        """Add a batch: `dense` [N, C, P] and `pruned` [K, N, C, P], whole or in parts one after the other along the
        positions (none when there are no levels).
        """
        if dense.dim() != 3 or dense.shape[1] != self.channels:
            raise InputError(f"dense activations must be [N, {self.channels}, P], not {tuple(dense.shape)}")
        if pruned is None:
            pruned = dense.new_empty((0, *dense.shape))
        parts = [pruned] if isinstance(pruned, Tensor) else pruned
        samples, _, positions = dense.shape
        scratch = scratch or Scratch()
        # A sample's weight is known only when all its dense output is. So first sums over the positions of each channel
        # and sample, [2 + 3K, C, N], which add up over the parts; the few that are left are weighed.
        sums: Tensor | None = None
        seen = 0
        for part in parts:
            beside = dense[:, :, seen : seen + part.shape[-1]]
            if part.shape != (self.levels, *beside.shape):
                raise InputError(f"pruned activations must be {(self.levels, *dense.shape)}, not {tuple(part.shape)}")
            more = _over_positions(beside, part, scratch)
            sums = more if sums is None else sums.add_(more)
            seen += part.shape[-1]
        if sums is None or seen != positions:
            raise InputError(f"pruned activations must be {(self.levels, *dense.shape)}, not {seen} positions")

        w = 1 / (self._energy(sums[0], sums[1], positions) + EPS)  # [C, N]
        self.samples += samples
        self.count += samples * positions
        self.plain += sums.sum(-1).cpu()
        self.weighed += (sums * w).sum(-1).cpu()
        self.wp += positions * w.sum(-1).cpu()

    def _energy(self, a: Tensor, aa: Tensor, positions: int) -> Tensor:
        """|s a + t|^2 over the positions, from the sums of a and a^2 [C, N]."""
        if not self.mapped:
            return aa
        s, t = (x.to(a.device)[:, None] for x in (self.scale, self.shift))
        return s * s * aa + 2 * s * t * a + t * t * positions

    def empty(self) -> ChannelSums:
        """Another of the same layer that has seen nothing."""
        other = ChannelSums(self.levels, self.channels, scale=self.scale, shift=self.shift)
        other.mapped = self.mapped
        return other

    def add(self, other: ChannelSums) -> None:
        """Add what another has seen of the same layer."""
        self.samples += other.samples
        self.count += other.count
        self.plain += other.plain
        self.weighed += other.weighed
        self.wp += other.wp

    def dense_moments(self) -> OutputMoments:
        """Of the dense output, [C]."""
        return _moments(self.plain[0], self.plain[1], self.count)

    def pruned_moments(self) -> OutputMoments:
        """Of the output at each level, [K, C]."""
        b, bb, _ = self._of_levels(self.plain)
        return _moments(b, bb, self.count)

    def cross_moment(self) -> Tensor:
        """The pooled mean of a b at each level, [K, C]."""
        return self._of_levels(self.plain)[2] / max(1, self.count)

    def distance(self, gain: Tensor | float = 1.0, offset: Tensor | float = 0.0) -> Tensor:
        """d(a, gain * b + offset) (eq:distance) [K], gain and offset [K, C], in the space behind `scale` and `shift`.

        The mean over samples of the mean over channels of |a - g b - h|^2 / (|a|^2 + eps), where
        |a - g b - h|^2 = A - 2g AB + g^2 BB - 2h a + 2gh b + h^2 positions. Rounding below 0 is cut off.
        """
        g, h, s, t, wp = gain, offset, self.scale, self.shift, self.wp
        (a, aa), (b, bb, ab) = self.weighed[:2], self._of_levels(self.weighed)
        wA, wAB, wBB, wa, wb = aa, ab, bb, a, b
        if self.mapped:  # of s x + t, from the sums of x
            wA = s * s * aa + 2 * s * t * a + t * t * wp
            wAB = s * s * ab + s * t * (a + b) + t * t * wp
            wBB = s * s * bb + 2 * s * t * b + t * t * wp
            wa, wb = s * a + t * wp, s * b + t * wp
        per_channel: Tensor = wA - 2 * g * wAB + g * g * wBB - 2 * h * wa + 2 * g * h * wb + h * h * wp
        return per_channel.clamp(min=0).mean(-1) / max(1, self.samples)

    def _of_levels(self, sums: Tensor) -> Tensor:
        """Those of b, b^2 and a b, [3, K, C]."""
        return sums[2:].view(3, self.levels, self.channels)


def _over_positions(dense: Tensor, pruned: Tensor, scratch: Scratch) -> Tensor:
    """The sums of a, a^2, each b, each b^2, each a b over the positions of a [N, C, P] and b [K, N, C, P]:
    [2 + 3K, C, N].
    """
    a, b = (_laid_out(x, name, scratch) for x, name in ((dense, "a"), (pruned, "b")))
    levels, channels, _, samples = b.shape
    sums = a.new_empty(2 + 3 * levels, channels, samples)
    of_levels = sums[2:].view(3, levels, channels, samples)
    for x, total, squares in ((a, sums[0], sums[1]), (b, of_levels[0], of_levels[1])):
        torch.sum(x, -2, out=total)
        if samples == 1:  # along memory a norm takes a single sweep
            torch.linalg.vector_norm(x, dim=-2, out=squares).square_()
        else:
            torch.sum(_product(x, x, scratch), -2, out=squares)
    torch.sum(_product(b, a, scratch), -2, out=of_levels[2])
    return sums


def _product(one: Tensor, other: Tensor, scratch: Scratch) -> Tensor:
    return torch.mul(one, other, out=scratch.take("products", one.shape, one.dtype, one.device))


def _laid_out(values: Tensor, name: str, scratch: Scratch) -> Tensor:
    """[..., N, C, P] as [..., C, P, N] in float64, the samples fastest, as `unfold` leaves them."""
    turned = values.movedim(-3, -1)
    return scratch.take(name, turned.shape, torch.float64, values.device).copy_(turned)


def _moments(total: Tensor, squares: Tensor, count: int) -> OutputMoments:
    mean, mean_square = total / max(1, count), squares / max(1, count)
    var = mean_square - mean.square()
    return OutputMoments(mean, torch.where(var > _NO_VARIANCE * mean_square, var, 0.0), count)
