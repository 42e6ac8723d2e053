"""What a recipe would do to a network, and roughly what it would take."""

from __future__ import annotations

import time

import torch
from torch import nn

from repairability._torch import copy_of, is_lazy
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, COUNT
from repairability.checkup.findings import RecipeRow
from repairability.curves import OUTPUT
from repairability.diagnostics.output import PASSES
from repairability.network.batches import Batch, Forward, sample_count
from repairability.network.candidates import refittable_layers
from repairability.network.layers import Layers
from repairability.network.norms import norms_of
from repairability.network.trace import trace
from repairability.pruning import Recipe
from repairability.repairs.walk import HELD, IMAGES
from repairability.scores import Score

_DIAGNOSIS = 5.0
"""What a diagnosis costs, in forward passes of its samples; measured at 4 to 8 (`benchmarks/diagnose.py`)."""

_TRIALS = 1.0 + PASSES
"""What the trials at the network's output cost beside the fits, in passes of the samples: the dense outputs, and the
trials themselves.
"""

_SOLVING = 0.25
"""Share of a plain float32 product's speed that the sums and the surgeon of a refit reach, in all; measured on ResNet20
and ResNet18 (`benchmarks/reconstruct.py`), so an estimate is good to a factor of three.
"""


class Costs:
    """What estimates are made of: the seconds of a pass of one sample, the speed of a product, the sizes of layers."""

    def __init__(self, network: nn.Module, batch: Batch, forward: Forward | None, seconds: float) -> None:
        self.samples = sample_count(batch)
        self.per_sample = seconds / max(1, self.samples)
        self.bytes = sum(p.nbytes for p in network.parameters() if not is_lazy(p)) + sum(
            b.nbytes for b in network.buffers()
        )
        every = refittable_layers(network)
        self.way = trace(network, every, batch, forward=forward, needed=()) if every else None
        self.every = every.subset(self.way.order) if self.way else every
        self.speed = _product_speed()

    def refit(self, images: int, score: Score, budget: float | None) -> tuple[float, float]:
        """Seconds and bytes of least squares on every layer, the choice of its weights included."""
        operations, held, widest = 0.0, 0, 0.0
        for layer in self.every:
            assert self.way is not None
            shape, geometry = self.way.inputs[layer.name], self.way.geometries[layer.name]
            positions = max(1, torch.Size(geometry.out_size(shape[2:])).numel()) * images
            inputs = layer.total // layer.outputs
            columns = positions if budget is None else min(positions, budget * inputs)  # those that are drawn
            operations += layer.groups * columns * inputs**2  # x x', half of it
            operations += layer.outputs * score.operations(inputs)
            here = 4 * (torch.Size(shape[1:]).numel() * images + layer.outputs * positions)
            drawn = 0.0 if budget is None else 4 * layer.groups * inputs * columns
            held, widest = max(held, here), max(widest, 3 * 8 * layer.groups * inputs**2 + drawn)
        return operations / (_SOLVING * self.speed), min(4.0 * held, HELD) + widest


def _product_speed() -> float:
    """Multiply-adds a second of a float32 product."""
    a = torch.ones(512, 512)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return 512**3 / max(best, 1e-9)


def estimate(network: nn.Module, layers: Layers, recipe: Recipe, costs: Costs) -> RecipeRow:
    (rule, options), score, repair = recipe.parts()
    seconds, held = 0.0, 2.0 * costs.bytes
    measured = rule.works_on_curves(options)
    if measured and repair.fit is None:
        seconds += _DIAGNOSIS * COUNT * costs.per_sample
    if repair.fit is not None or score.looks_at_inputs:
        images, budget = (IMAGES, None) if repair.fit is None else (repair.fit.images, repair.fit.budget)
        spent, more = costs.refit(images, score, budget)
        rounds = 2 if measured and repair.fit is not None else 1  # curves of a refit: the same least squares once more
        seconds, held = seconds + rounds * (spent + 4 * images * costs.per_sample), held + more
    elif norms_of(network).learned:
        seconds += BN_BATCHES * BN_BATCH_SIZE * costs.per_sample
    if OUTPUT in rule.measures(options):
        seconds += _TRIALS * (IMAGES if repair.fit is None else repair.fit.images) * costs.per_sample
    does = repair.notes(copy_of(network), layers)
    return RecipeRow(recipe.name, rule.name, score.name, repair.name, does, seconds, held / 2**20)
