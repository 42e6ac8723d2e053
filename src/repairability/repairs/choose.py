"""Masks by a score that looks at a layer's inputs: on the way of a reconstruction, or on the dense network's inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repairability._torch import copy_of
from repairability.algebra.moments import LeastSquares
from repairability.allocation import Allocation
from repairability.calibration import CalibrationSet
from repairability.errors import InputError
from repairability.masks import Masks
from repairability.network.layers import KINDS, Layers, layers_named, prunable_layers
from repairability.repairs.response import name_of
from repairability.repairs.walk import IMAGES, walk
from repairability.scores import Score


class Chooser:
    """Asks a score for each layer's mask, with the allocation's count, and keeps the answers."""

    def __init__(self, score: Score, plan: Allocation, layers: Layers) -> None:
        self.score, self.plan, self.layers = score, plan, layers
        self.found: dict[str, Tensor] = {}

    def __call__(self, layer: str, problem: LeastSquares) -> Tensor:
        count = self.plan.pruned(layer)
        mask = self.score(problem, count)
        if mask.shape != problem.weights.shape or mask.dtype != torch.bool or int((~mask).sum()) != count:
            raise InputError(
                f"score {name_of(self.score)!r} must give a bool mask {tuple(problem.weights.shape)} that takes "
                f"{count} weights of layer {layer!r}, not {tuple(mask.shape)} {mask.dtype} taking {int((~mask).sum())}"
            )
        weight = self.layers[layer].weight
        self.found[layer] = mask.view(weight.shape).to(weight.device)
        return mask

    def masks(self, layers: Layers) -> Masks:
        """For every layer of the allocation, where `layers` has it; one that loses nothing keeps everything."""
        whole = {name: torch.ones_like(layers[name].weight, dtype=torch.bool) for name in self.plan}
        return Masks({**whole, **self.found})


def choose_masks(
    model: nn.Module, plan: Allocation, score: Score, calibration: CalibrationSet, *, images: int = IMAGES
) -> Masks:
    """Masks with exactly the allocation's counts, by the inputs that the dense network gives each layer."""
    every = layers_named(model, plan)
    chooser = Chooser(score, plan, every)
    lost = [name for name in plan if plan.pruned(name)]
    copy = copy_of(model)  # a second network to halt in; its weights stay
    layers = prunable_layers(copy, types=tuple(KINDS), skip=()).subset(lost)
    for station in walk(model, copy, layers, calibration, images=images) if lost else ():
        chooser(station.layer.name, station.problem(model, station.moments()))
    return chooser.masks(every)
