"""What a layer costs at each sparsity: multiply-adds from its geometry, milliseconds as the runtime takes them here."""

from __future__ import annotations

import math
import statistics

import numpy as np
import torch
from torch import Tensor, nn

from repairability._torch import copy_of
from repairability.allocation import Allocation
from repairability.deploy.runtime.accelerate import accelerate
from repairability.errors import InputError
from repairability.masks import apply_masks_, make_masks
from repairability.network.batches import Batch, Forward
from repairability.network.candidates import refittable_layers
from repairability.network.layers import Layers
from repairability.network.trace import trace
from repairability.prices import Prices
from repairability.progress import track

LEVELS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
"""The sparsities at which the runtime's time is taken."""

SEED = 0
"""Of the masks that are timed."""


def multiply_adds(model: nn.Module, layers: Layers, batch: Batch, *, forward: Forward | None = None) -> Prices:
    """For one sample: kept weights times the places where each is used. Fixed: those of every other layer that a
    product with a weight is known of.
    """
    known = {layer.place for layer in layers}
    others = [x for x in refittable_layers(model) if x.place not in known]
    every = Layers([*layers, *others], layers.total + sum(x.total for x in others))
    way = trace(model, every, batch, forward=forward, needed=layers.names)

    def work(name: str) -> float:
        spatial = way.inputs[name][2:]
        geometry = way.geometries[name]
        places = math.prod(geometry.out_size(spatial) if geometry.kernel else spatial)
        return float(every[name].total * places * way.calls[name])

    ends = np.array([0.0, 1.0])
    fixed = sum(work(x.name) for x in others if x.name in way.calls)
    return Prices(
        "multiply-adds", dict.fromkeys(layers.names, ends), {x: np.array([work(x), 0.0]) for x in layers.names}, fixed
    )


def milliseconds(model: nn.Module, layers: Layers, example: Batch, *, threads: int | None = None) -> Prices:
    """For a batch like the example, on this machine: the faster of dense and sparse kernel at each of LEVELS, with
    random masks of that sparsity in all layers. Fixed: what the accelerated network takes beside these layers.
    """
    draw = torch.Generator().manual_seed(SEED)
    times: dict[str, list[float]] = {name: [] for name in layers.names}
    beside = []
    for level in track(LEVELS, "timing layers", len(LEVELS)):
        fast = accelerate(_drawn(model, layers, level, draw), example, threads=threads)
        own = {x.name: min(x.dense, x.sparse) for x in fast.layers}
        missing = [name for name in layers.names if name not in own]
        if missing or fast.reason:
            why = fast.reason or f"it has no time for {', '.join(missing)}"
            raise InputError(f"the runtime does not run this network as a whole, so no speed can be planned: {why}")
        if fast.way == "planned":
            beside.append(max(0.0, fast.ms - sum(own[name] for name in layers.names)))
        for name, taken in times.items():
            taken.append(own[name])
    if not beside:
        raise InputError("torch alone is faster at every sparsity on this machine, so no speed can be planned")
    grid = np.array(LEVELS)
    # a sparser layer is never slower but for noise
    falling = {name: np.minimum.accumulate(np.array(taken)) for name, taken in times.items()}
    return Prices("milliseconds", dict.fromkeys(layers.names, grid), falling, statistics.median(beside))


def _drawn(model: nn.Module, layers: Layers, sparsity: float, draw: torch.Generator) -> nn.Module:
    """A copy with random weights gone."""
    copy = copy_of(model)
    for layer in layers.on(copy):
        values: Tensor = layer.weight.detach()
        with torch.no_grad():
            layer.weight.copy_(values * (torch.rand(values.shape, generator=draw) >= sparsity))
    return copy


def time_of(model: nn.Module, allocation: Allocation, example: Batch, threads: int | None) -> float:
    """Milliseconds of the network that has lost its smallest weights by this allocation."""
    copy = copy_of(model)
    apply_masks_(copy, make_masks(copy, allocation))
    return accelerate(copy, example, threads=threads).ms


def dense_time(model: nn.Module, example: Batch, threads: int | None) -> float:
    """Milliseconds of the unpruned network, accelerated likewise: the runtime's dense kernels or torch alone, whichever
    is faster.
    """
    return accelerate(model, example, threads=threads).ms
