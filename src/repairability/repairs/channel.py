"""CR: channelwise variance matching with shrinkage."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from repairability._torch import evaluating
from repairability.algebra.sums import EPS, ChannelSums
from repairability.calibration import CalibrationSet
from repairability.errors import InputError
from repairability.network.batches import Batch, Reached, sample_count
from repairability.network.calls import Call, Handler
from repairability.network.layers import Layer, Layers
from repairability.network.trace import trace
from repairability.network.watching import Watching
from repairability.progress import track
from repairability.repairs.repair import Repair, RepairContext
from repairability.repairs.response import Response
from repairability.repairs.statistics import Statistics, measure_statistics

_LIVE = 1e-12
"""A channel is alive if its variance exceeds this fraction of the layer's largest."""

TAUS = ("median", "mean")


@dataclass(frozen=True)
class ChannelRepair(Repair):
    """Scale each filter so that its channel's variance approaches the dense one:
    r = log(var_d + eps) - log(var_p + eps) (eq:app_log_variance_ratio), lam = var_p / (var_p + tau)
    (eq:app_shrinkage_weight), gamma = exp(lam * r / 2) (eq:app_repair_scale; with lam = 1 eq:app_direct_scale).

    `tau` is `shrinkage` times the median (or mean) of var_p over the layer's live channels, or a number of its own:
    a channel of typical variance keeps almost all of its correction, a collapsed one almost none: there is only noise
    left to amplify.

    `sequential`: layer by layer in execution order, each measured with everything upstream already repaired. The
    simultaneous variant measures all layers in the unrepaired network and over-corrects.
    """

    needs_statistics = True
    shrinkage: float = 0.1
    tau: str | float = "median"
    sequential: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.tau, str) and self.tau not in TAUS:
            raise InputError(f"tau must be a number or one of {', '.join(TAUS)}, not {self.tau!r}")
        if self.shrinkage < 0 or (not isinstance(self.tau, str) and self.tau < 0):
            raise InputError(f"shrinkage and tau must not be negative: {self.shrinkage}, {self.tau}")

    def gamma(self, dense_var: Tensor, pruned_var: Tensor) -> Tensor:
        """The scale of each filter, from variances [..., C] of one layer. An empty filter (var_p = 0) keeps 1."""
        tau = self._tau(pruned_var)
        ratio = torch.log(dense_var + EPS) - torch.log(pruned_var + EPS)
        lam = torch.where(pruned_var > 0, pruned_var / (pruned_var + tau).clamp(min=torch.finfo(torch.float64).tiny), 0)
        return torch.exp(lam * ratio / 2)

    def _tau(self, pruned_var: Tensor) -> Tensor:
        if not isinstance(self.tau, str):
            return torch.tensor(float(self.tau), dtype=torch.float64)
        live = pruned_var > _LIVE * pruned_var.amax(-1, keepdim=True)
        alive = torch.where(live, pruned_var, torch.nan)
        middle = (
            alive.nanmean(-1, keepdim=True)
            if self.tau == "mean"
            else alive.nanquantile(0.5, dim=-1, keepdim=True)  # of an even number, the mean of the middle two
        )
        return self.shrinkage * middle.nan_to_num(0.0)  # no live channel: 0

    def respond(self, response: Response) -> Response:
        """The filter is scaled, not its bias: y -> gamma * (y - bias) + bias."""
        gamma = self.gamma(response.dense.var, response.var)
        return replace(
            response, gain=gamma * response.gain, offset=gamma * response.offset + (1 - gamma) * response.bias
        )

    def __call__(self, context: RepairContext) -> None:
        model, layers, dense, calibration = context.model, context.layers, context.statistics, context.calibration
        if not self.sequential:
            pruned = measure_statistics(model, layers, calibration, every=False)
            for layer in (layer for layer in layers if layer.name in pruned):
                _scale_(layer, self.gamma(dense[layer.name].var, pruned[layer.name].var))
            return
        first = next(iter(calibration.batches(model)))
        # a layer that the pruned network no longer reaches (an expert) stays as it is
        way = trace(model, layers, first, forward=calibration.forward, needed=())
        if calibration.batch_count == 1 and all(calls == 1 for calls in way.calls.values()):
            self._in_one_pass_(model, layers, dense, calibration, first)
        else:
            self._layer_by_layer_(model, {layers[x]: way.calls[x] for x in way.order}, dense, calibration)

    def notes(self, model: nn.Module, lost: Layers) -> tuple[str, ...]:
        return (f"{self.name} scales the filters of {len(lost)} layers",)

    def _in_one_pass_(
        self, model: nn.Module, layers: Layers, statistics: Statistics, calibration: CalibrationSet, batch: Batch
    ) -> None:
        """All images in one batch: each layer is measured, scaled, and hands its scaled output on."""

        def repaired(call: Call) -> Tensor:
            output, sums = call.compute(), ChannelSums(0, call.layer.outputs)
            sums.update(call.channels(output))
            gamma = self.gamma(statistics[call.layer.name].var, sums.dense_moments().var)
            _scale_(call.layer, gamma)
            return _scaled_output(call, output, gamma)

        with (
            evaluating(model, writing=True) as network,
            Watching(network, layers.on(network), repaired, samples=sample_count(batch)),
        ):
            calibration.run(network, batch)

    def _layer_by_layer_(
        self, model: nn.Module, calls: dict[Layer, int], statistics: Statistics, calibration: CalibrationSet
    ) -> None:
        """Where the images do not fit one batch, or a layer is called several times: a pass per layer, each stopped as
        soon as its layer has been measured.
        """
        for layer in track(calls, "repairing channels", len(calls)):
            sums = ChannelSums(0, layer.outputs)
            with evaluating(model) as network:
                for batch in calibration.batches(model):
                    summing = _summing(sums, calls[layer])
                    with Watching(network, [layer], summing, samples=sample_count(batch)):
                        calibration.run(network, batch)
            if sums.count:
                _scale_(layer, self.gamma(statistics[layer.name].var, sums.dense_moments().var))


def _summing(sums: ChannelSums, calls: int) -> Handler:
    """Adds up the layer's output and ends the forward pass after its last call."""
    left = itertools.count(calls - 1, -1)

    def summed(call: Call) -> Tensor:
        output = call.compute()
        sums.update(call.channels(output))
        if next(left) == 0:
            raise Reached
        return output

    return summed


def _scale_(layer: Layer, gamma: Tensor) -> None:
    factor = gamma.to(layer.weight.device, layer.weight.dtype)
    layer.write_(layer.filters() * factor.view(layer.groups, -1, 1))


def _scaled_output(call: Call, output: Tensor, gamma: Tensor) -> Tensor:
    """gamma * (y - bias) + bias, in the output's own layout."""
    factor = call.along(gamma.to(output.device, output.dtype))
    if call.bias is None:
        return output * factor
    beta = call.along(call.bias)
    return (output - beta) * factor + beta
