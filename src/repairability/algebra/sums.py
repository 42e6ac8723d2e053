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

    With A = |a|^2, AB = <a, b>, BB = |b|^2 over the positions of one sample and channel and w = 1 / (A + eps), it
    keeps the weighted sums  wA, wa, wp [C]  and  wAB, wBB, wb [K, C]  (a, b, p: the sums of a, of b, the number of
    positions), from which the distance of any per-channel affine repair follows, and the unweighted sums of a, a^2,
    b, b^2 and a b for pooled moments. With `scale` and `shift` [C] the weighted sums are those of scale * a + shift and
    scale * b + shift (the activations behind a BatchNorm); the moments stay those of a and b.

    All in float64: the same activations give the same sums to 1e-9, whatever the split or order.
    """

    WEIGHTED = ("wA", "wa", "wp", "wAB", "wBB", "wb")
    PLAIN = ("a", "aa", "b", "bb", "ab")

    levels: int
    channels: int
    scale: Tensor
    shift: Tensor
    samples: int
    count: int  # pooled values per channel

    def __init__(self, levels: int, channels: int, *, scale: Tensor | None = None, shift: Tensor | None = None) -> None:
        self.levels, self.channels = levels, channels
        self.scale = torch.ones(channels, dtype=torch.float64) if scale is None else scale.double().cpu()
        self.shift = torch.zeros(channels, dtype=torch.float64) if shift is None else shift.double().cpu()
        self.samples = 0
        self.count = 0
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
        # A sample's weight is known only when all its dense output is. So first plain sums over the positions of each
        # channel and sample, [C, N] and [K, C, N], which add up over the parts; the few that are left are weighed.
        plain: list[Tensor] = []  # of a, a^2, b, b^2, a b
        seen = 0
        for part in parts:
            beside = dense[:, :, seen : seen + part.shape[-1]]
            if part.shape != (self.levels, *beside.shape):
                raise InputError(f"pruned activations must be {(self.levels, *dense.shape)}, not {tuple(part.shape)}")
            more = _over_positions(beside, part, scratch)
            plain = [x + y for x, y in zip(plain, more, strict=True)] if plain else more
            seen += part.shape[-1]
        if seen != positions:
            raise InputError(f"pruned activations must be {(self.levels, *dense.shape)}, not {seen} positions")

        a, aa = plain[:2]
        s, t = (x.to(a.device) for x in (self.scale, self.shift))
        w = 1 / (s[:, None] ** 2 * aa + 2 * (s * t)[:, None] * a + (t * t)[:, None] * positions + EPS)  # [C, N]
        wa, waa, wb, wbb, wab = ((w * x).sum(-1) for x in plain)
        wp = positions * w.sum(-1)
        self.samples += samples
        self.count += samples * positions
        sums = {
            **{name: x.sum(-1) for name, x in zip(self.PLAIN, plain, strict=True)},
            "wA": s * s * waa + 2 * s * t * wa + t * t * wp,  # of s*x + t, from the sums of x
            "wAB": s * s * wab + s * t * (wa + wb) + t * t * wp,
            "wBB": s * s * wbb + 2 * s * t * wb + t * t * wp,
            "wa": s * wa + t * wp,
            "wb": s * wb + t * wp,
            "wp": wp,
        }
        for name, value in sums.items():
            setattr(self, name, getattr(self, name) + value.cpu())

    def empty(self) -> ChannelSums:
        """Another of the same layer that has seen nothing."""
        return ChannelSums(self.levels, self.channels, scale=self.scale, shift=self.shift)

    def add(self, other: ChannelSums) -> None:
        """Add what another has seen of the same layer."""
        self.samples += other.samples
        self.count += other.count
        for name in (*self.WEIGHTED, *self.PLAIN):
            setattr(self, name, getattr(self, name) + getattr(other, name))

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


def _over_positions(dense: Tensor, pruned: Tensor, scratch: Scratch) -> list[Tensor]:
    """The sums of a, a^2, b, b^2 and a b over the positions of a [N, C, P] and b [K, N, C, P], as [C, N], [K, C, N]."""
    a, b = (_laid_out(x, name, scratch) for x, name in ((dense, "a"), (pruned, "b")))
    room = scratch.take("products", b.shape, b.dtype, b.device)
    if a.shape[-1] == 1:  # along memory a norm takes a single sweep
        squares = [torch.linalg.vector_norm(x, dim=-2).square_() for x in (a, b)]
    else:
        squares = [(a * a).sum(-2), torch.mul(b, b, out=room).sum(-2)]
    return [a.sum(-2), squares[0], b.sum(-2), squares[1], torch.mul(b, a, out=room).sum(-2)]


def _laid_out(values: Tensor, name: str, scratch: Scratch) -> Tensor:
    """[..., N, C, P] as [..., C, P, N] in float64, the samples fastest, as `unfold` leaves them."""
    turned = values.movedim(-3, -1)
    return scratch.take(name, turned.shape, torch.float64, values.device).copy_(turned)


def _moments(total: Tensor, squares: Tensor, count: int) -> OutputMoments:
    mean, mean_square = total / max(1, count), squares / max(1, count)
    var = mean_square - mean.square()
    return OutputMoments(mean, torch.where(var > _NO_VARIANCE * mean_square, var, 0.0), count)
