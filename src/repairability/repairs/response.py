"""Response: a single pruned layer on its way through a repair, as the diagnostics see it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from repairability.algebra.sums import ChannelSums, OutputMoments


@dataclass(frozen=True)
class Norm:
    """The BatchNorm behind a layer; mean and var are its running statistics, [C] or [K, C]."""

    weight: Tensor
    bias: Tensor
    eps: float
    mean: Tensor
    var: Tensor

    def scale(self) -> Tensor:
        return self.weight / (self.var + self.eps).sqrt()

    def shift(self) -> Tensor:
        return self.bias - self.scale() * self.mean


@dataclass(frozen=True)
class Response:
    """A pruned layer, alone in the dense network, on its way through a repair: its output is gain * b + offset.

    dense, pruned: pooled moments of a [C] and b [K, C]; cross: the pooled mean of a b [K, C]; bias [C]; gain, offset
    [K, C]; the norm behind it, if observed. `shifts`: a shift of the channel has a place, the layer's bias or a
    BatchNorm that takes this layer's output alone, observed or not; moving that norm's running mean by -h counts as an
    output moved by h.
    """

    dense: OutputMoments
    pruned: OutputMoments
    cross: Tensor
    bias: Tensor
    gain: Tensor
    offset: Tensor
    norm: Norm | None
    shifts: bool

    @classmethod
    def begin(cls, sums: ChannelSums, bias: Tensor, norm: Norm | None, *, shifts: bool) -> Response:
        """Before any repair: gain 1, offset 0."""
        gain = torch.ones(sums.levels, sums.channels, dtype=torch.float64)
        dense, pruned, cross = sums.dense_moments(), sums.pruned_moments(), sums.cross_moment()
        return cls(dense, pruned, cross, bias, gain, torch.zeros_like(gain), norm, shifts)

    @property
    def mean(self) -> Tensor:
        """The pooled mean of the output as repaired so far."""
        return self.gain * self.pruned.mean + self.offset

    @property
    def var(self) -> Tensor:
        return self.gain.square() * self.pruned.var

    @property
    def cov(self) -> Tensor:
        """The pooled covariance of a and the output as repaired so far: gain * (E[a b] - E[a] E[b])."""
        return self.gain * (self.cross - self.dense.mean * self.pruned.mean)
