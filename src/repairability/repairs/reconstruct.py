"""Reconstruction: the weights that stay are refitted, layer by layer, to give what the dense layer gave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repairability.algebra.grams import solve_on_support
from repairability.algebra.moments import InputMoments, LeastSquares, filters_of
from repairability.calibration import CalibrationSet
from repairability.errors import InputError
from repairability.network.layers import KINDS, Layers, prunable_layers
from repairability.repairs.statistics import Statistics
from repairability.repairs.walk import IMAGES, Station, walk

RIDGE = 1e-3

Choose = Callable[[str, LeastSquares], Tensor]
"""(layer, its problem) -> a mask [G, R, K], True where a weight stays."""


@dataclass(frozen=True)
class Reconstruction:
    """Per filter, on the weights S that stay: min |y - X_S w|^2 / n + rho m |w - w_dense|^2, with m the mean diagonal
    of X'X / n, X the inputs that the network repaired so far delivers and y the dense network's output (`walk` says how
    a shortcut's error enters y). In closed form: (G_SS + rho m) (w - w_dense) = c_S - G_SS w_dense. With K inputs and n
    samples rho = ridge (1 + 100 K / n): the fewer samples, the nearer the weights stay to the dense ones.

    X and y are centred where the layer has a bias or a BatchNorm of its own behind it, which then takes the mean. With
    `choose` the masks are chosen on the way, on the inputs that the repaired network delivers. `everything` also refits
    the layers that lost no weight (the classifier among them) to the inputs they now get.
    """

    ridge: float = RIDGE
    images: int = IMAGES
    everything: bool = False
    needs_statistics = False
    needs_dense = True
    chooses_masks = True

    @property
    def name(self) -> str:
        name = "reconstruct-all" if self.everything else "reconstruct"
        return name if self.images == IMAGES else f"{name}@{self.images}"

    def __post_init__(self) -> None:
        if self.ridge < 0 or self.images < 1:
            raise InputError(f"ridge must not be negative and images at least 1, not {self.ridge} and {self.images}")

    def __call__(
        self,
        model: nn.Module,
        layers: Layers,
        statistics: Statistics,
        calibration: CalibrationSet,
        *,
        dense: nn.Module | None = None,
        choose: Choose | None = None,
    ) -> None:
        if dense is None:
            raise InputError("repair 'reconstruct' compares with the dense network; call it with dense=")
        lost = set(layers.names)
        chosen = prunable_layers(model, types=tuple(KINDS), skip=()) if self.everything else layers
        for station in walk(dense, model, chosen, calibration, images=self.images):
            moments = station.moments()
            problem = station.problem(dense, moments)
            if choose is None or station.layer.name not in lost:
                support = filters_of(station.layer.weight, station.groups) != 0
            else:
                support = choose(station.layer.name, problem)
            _write_(station, refitted(problem, support, self.ridge), moments)


def fit_of(repair: object) -> Reconstruction | None:
    """The reconstruction that a repair begins with, if it does: by itself, or in a chain."""
    first = getattr(repair, "steps", (repair,))[0]
    return first if isinstance(first, Reconstruction) else None


def refitted(problem: LeastSquares, support: Tensor, ridge: float) -> Tensor:
    """The refitted weights [G, R, K], zero outside their support [G, R, K]."""
    fitted = torch.zeros_like(problem.weights)
    for g, weights in enumerate(problem.weights):
        kept = weights * support[g]  # [R, K]
        right = problem.cross[g].mT - kept @ problem.gram[g]
        fitted[g] = kept + solve_on_support(problem.damped(g, ridge), right, support[g])
    return fitted


def _write_(station: Station, fitted: Tensor, moments: InputMoments) -> None:
    """The weights, and the mean into the bias, or the BatchNorm's running mean: y + h - mean = y - (mean - h)."""
    weight = station.layer.weight
    mean = (fitted @ moments.mean_x[..., None]).squeeze(-1)  # [G, R]
    shift = (moments.mean_y - mean).flatten()
    with torch.no_grad():
        weight.copy_(fitted.view(weight.shape).to(weight.device, weight.dtype))
        bias = _bias(station.module)
        if bias is not None:
            bias.copy_(shift.to(bias.device, bias.dtype))
        elif station.norm is not None:
            running: Tensor = station.norm.running_mean  # type: ignore[assignment]
            running.sub_(shift.to(running.device, running.dtype))


def _bias(module: nn.Module) -> nn.Parameter | None:
    return getattr(module, "bias", None)
