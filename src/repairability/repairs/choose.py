"""Masks by a score that looks at a layer's inputs: on the way of a reconstruction, or on the dense network's inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repairability.algebra.least_squares import LeastSquares
from repairability.algebra.targets import joined
from repairability.allocation import Allocation
from repairability.calibration import CalibrationSet, Images
from repairability.errors import InputError
from repairability.masks import Masks, make_masks
from repairability.network.discover import layers_named
from repairability.network.layers import Layers
from repairability.repairs.walk import IMAGES, walk
from repairability.scores import Score, ScoreLike, get_score


class Chooser:
    """Asks a score for each layer's mask, with the allocation's count, and keeps the answers."""

    def __init__(self, score: Score, allocation: Allocation, layers: Layers) -> None:
        self.score, self.allocation, self.layers = score, allocation, layers
        self.chosen: dict[str, Tensor] = {}

    def __call__(self, layer: str, problem: LeastSquares) -> Tensor:
        count = self.allocation.pruned(layer)
        mask = self.score(problem, count)
        if mask.shape != problem.weights.shape or mask.dtype != torch.bool or int((~mask).sum()) != count:
            raise InputError(
                f"score {self.score.name!r} must give a bool mask {tuple(problem.weights.shape)} that takes "
                f"{count} weights of layer {layer!r}, not {tuple(mask.shape)} {mask.dtype} taking {int((~mask).sum())}"
            )
        own = self.layers[layer]
        self.chosen[layer] = own.unfiltered(joined(mask, problem.blocks)).to(own.weight.device)
        return mask

    def masks(self) -> Masks:
        """For every layer of the allocation; one that loses nothing keeps everything."""
        whole = {name: torch.ones_like(self.layers[name].weight, dtype=torch.bool) for name in self.allocation}
        return Masks({**whole, **self.chosen})


def choose_masks(
    model: nn.Module,
    allocation: Allocation,
    images: Images,
    *,
    score: ScoreLike = "second_order",
    most: int = IMAGES,
    layers: Layers | None = None,
) -> Masks:
    """Masks with exactly the allocation's counts, chosen by `score`; the model is only read.

    A score that looks at inputs sees those that the dense network gives each layer on the first `most` images. `layers`
    are the allocation's, where they are known already.
    """
    chosen_by = get_score(score)
    if not chosen_by.looks_at_inputs:
        return make_masks(model, allocation)
    calibration = CalibrationSet.read(images, model=model)
    if layers is None:
        first = next(calibration.batches(model))
        layers = layers_named(model, allocation, batch=first, forward=calibration.forward)
    chooser = Chooser(chosen_by, allocation, layers)
    lost = layers.subset(name for name in allocation if allocation.pruned(name))
    for station in walk(model, model, lost, calibration, images=most) if lost else ():
        chooser(station.layer.name, station.problem(station.moments()))
    return chooser.masks()
