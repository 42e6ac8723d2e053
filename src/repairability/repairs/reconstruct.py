"""Reconstruction: the weights that stay are refitted, layer by layer, to give what the dense layer gave."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repairability.algebra.targets import blocked, joined
from repairability.errors import InputError
from repairability.network.candidates import refittable_layers
from repairability.network.layers import Layers
from repairability.repairs.repair import Fit, Repair, RepairContext
from repairability.repairs.station import Station
from repairability.repairs.walk import IMAGES, walk

RIDGE = 1e-3

BUDGET = 64.0
"""Columns for each input of a filter, where not all are taken."""


@dataclass(frozen=True)
class Reconstruction(Repair):
    """Per filter, on the weights S that stay: min |y - X_S w|^2 / n + rho m |w - w_dense|^2, with m the mean diagonal
    of X'X / n, X the inputs that the network repaired so far delivers and y the dense network's output (`walk` says how
    a shortcut's error enters y). In closed form: (G_SS + rho m) (w - w_dense) = c_S - G_SS w_dense. With K inputs and n
    samples rho = ridge (1 + 100 K / n): the fewer samples, the nearer the weights stay to the dense ones.

    X and y are centred where the layer has a bias or a BatchNorm of its own behind it, which then takes the mean. With
    `choose` the masks are chosen on the way, on the inputs that the repaired network delivers. `everything` also refits
    the layers that lost no weight (the classifier among them) to the inputs they now get.

    `budget`: so many input columns for each input of a filter, at positions drawn by `seed`, instead of every position
    of every image (a few positions of a large map will do). `rounds`: where an activation with flat ends stands behind
    (a ReLU), an output need not be met where the dense one lies beyond its end; the targets are moved accordingly and
    the weights fitted again, so many times (`algebra.targets`).
    """

    chooses_masks = True
    ridge: float = RIDGE
    images: int = IMAGES
    everything: bool = False
    budget: float | None = None
    rounds: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ridge < 0 or self.images < 1:
            raise InputError(f"ridge must not be negative and images at least 1, not {self.ridge} and {self.images}")
        if self.rounds < 0 or not (self.budget is None or self.budget > 0):
            raise InputError(f"rounds must not be negative and budget positive, not {self.rounds} and {self.budget}")
        if self.rounds and self.budget is None:
            raise InputError("rounds move the targets of columns that are drawn: give a budget too")

    @property
    def fit(self) -> Fit:
        return Fit(self.ridge, self.images, self.budget, self.seed)

    def notes(self, model: nn.Module, lost: Layers) -> tuple[str, ...]:
        more = len(_with_others(lost, refittable_layers(model))) - len(lost) if self.everything else 0
        beside = f" and up to {more} that lost none" if more else ""
        return (f"{self.name} refits {len(lost)} layers{beside}, on at most {self.images} samples",)

    def __call__(self, context: RepairContext) -> None:
        model, lost, choose = context.model, context.layers, context.choose
        chosen = _with_others(lost, refittable_layers(model)) if self.everything else lost
        for station in walk(context.dense, model, chosen, context.calibration, images=self.images, needed=lost.names):
            targets = None if self.budget is None else station.targets(self.budget, self.seed)
            moments = station.moments() if targets is None else station.checked(targets.moments())
            problem = station.problem(moments)
            if choose is None or station.layer.name not in lost.names:
                support = blocked((station.layer.filters() != 0).cpu(), problem.blocks)
            else:
                support = choose(station.layer.name, problem)
            fitted = problem.refitted(support, self.ridge)
            if targets is not None and (targets.low is not None or targets.high is not None):
                for _ in range(self.rounds):
                    given = targets.given(fitted, moments.shift(fitted, station.shifts))
                    moments = targets.moved(given).of_outputs(moments)
                    problem = problem.toward(moments, centred=station.shifts)
                    fitted = problem.refitted(support, self.ridge, start=fitted)
            shift = moments.shift(fitted, station.shifts)  # of a filter in blocks, the sum of theirs
            shift = shift.view(station.layer.groups, problem.blocks, -1).sum(1)
            _write_(station, joined(fitted, problem.blocks), shift)


def _with_others(lost: Layers, others: Layers) -> Layers:
    """The layers that lost weights, and every other that may be refitted."""
    known = {layer.place for layer in lost}
    more = [
        layer
        for layer in others
        if layer.name not in lost.names and (layer.part is not None or layer.place not in known)
    ]
    return Layers([*lost, *more], lost.total + sum(layer.total for layer in more))


def _write_(station: Station, fitted: Tensor, shift: Tensor) -> None:
    """The weights, and the shift into the bias, or the BatchNorm's running mean: y + h - mean = y - (mean - h)."""
    station.layer.write_(fitted)
    with torch.no_grad():
        bias = station.bias_place
        if bias is not None:
            bias.copy_(shift.flatten().to(bias.device, bias.dtype))
        elif station.norm is not None:
            running: Tensor = station.norm.running_mean  # type: ignore[assignment]
            running.sub_(shift.flatten().to(running.device, running.dtype))
