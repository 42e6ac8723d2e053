"""What a repair is, and what it can tell the diagnostics about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from repairability.algebra.sums import ChannelSums, Moments
from repairability.calibration import CalibrationSet
from repairability.errors import InputError
from repairability.network.layers import Layers
from repairability.repairs.statistics import Statistics


class Repair(Protocol):
    """Mend `model` (our copy, already pruned) in place.

    `layers` are those that lost weights; `statistics` the dense network's pooled moments of each of them. A repair
    that also has `respond(response) -> Response` can be judged by the diagnostics; one that does without the dense
    statistics may say so by `needs_statistics = False`. One that says `needs_dense = True` is also given the dense
    network as `dense=`; one that says `chooses_masks = True` may be given `choose=` instead of a network that is
    already pruned (`repair/reconstruct.py`).
    """

    def __call__(
        self, model: nn.Module, layers: Layers, statistics: Statistics, calibration: CalibrationSet
    ) -> None: ...


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

    dense: Moments
    pruned: Moments
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


def respond(repair: Repair, response: Response) -> Response:
    """The response of any repair, or an error that says it has none."""
    method = getattr(repair, "respond", None)
    if method is None:
        raise InputError(
            f"repair {name_of(repair)!r} has no per-channel form (no `respond` method), so the diagnostics cannot be "
            "conditioned on it; diagnose with another repair, such as 'cr+bn'"
        )
    answer: Response = method(response)
    return answer


def name_of(repair: object) -> str:
    """What a repair is called in tables and records."""
    return str(getattr(repair, "name", None) or getattr(repair, "__name__", None) or type(repair).__name__)


def apply_repair_(
    repair: Repair,
    model: nn.Module,
    layers: Layers,
    statistics: Statistics,
    calibration: CalibrationSet,
    *,
    dense: nn.Module,
    choose: object = None,
) -> None:
    """Run a repair with what it asks for."""
    extra: dict[str, object] = {}
    if getattr(repair, "needs_dense", False):
        extra["dense"] = dense
    if choose is not None:
        extra["choose"] = choose
    repair(model, layers, statistics, calibration, **extra)


def chooses_masks(repair: Repair) -> bool:
    """Whether a repair goes layer by layer and can ask a score on its way."""
    return bool(getattr(repair, "chooses_masks", False))
