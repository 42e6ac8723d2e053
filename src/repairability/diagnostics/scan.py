"""The one pass: every layer at every grid sparsity, from a single forward pass of the dense model.

While only layer l is pruned, its input is the dense input. So in a hook on layer l the dense forward pass offers all
that is needed: the input, from which the outputs at all levels follow, and the dense output to compare them with.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repairability._torch import batch_norms, evaluating, unwrapped
from repairability.algebra.sums import ChannelSums, OutputMoments
from repairability.allocation import check_sparsity, pruned_count
from repairability.calibration import CalibrationSet
from repairability.diagnostics.products import LevelProducts
from repairability.errors import InputError
from repairability.network.batches import sample_count
from repairability.network.calls import Call
from repairability.network.layers import Layer, Layers
from repairability.network.trace import trace
from repairability.network.watching import Watching
from repairability.progress import track
from repairability.repairs.response import Norm

OBSERVE = ("layer", "norm", "norm-or-layer")


@dataclass(frozen=True)
class Scan:
    """What one pass over the calibration images found for one layer."""

    grid: tuple[float, ...]
    measured: tuple[int, ...]  # the levels that prune anything, as positions in the grid
    sums: ChannelSums  # over the measured levels
    bias: Tensor  # [C]
    norm: Norm | None  # the BatchNorm behind the layer, where it is observed
    shifts: bool  # a channel can be shifted: the layer has a bias, or a BatchNorm of its own behind it

    @property
    def moments(self) -> OutputMoments:
        return self.sums.dense_moments()


def scan(
    model: nn.Module,
    layers: Layers,
    calibration: CalibrationSet,
    grid: Mapping[str, Sequence[float]],
    observe: str = "layer",
) -> dict[str, Scan]:
    """One `Scan` per layer. `grid` gives each layer its sparsities. The model is only read."""
    if observe not in OBSERVE:
        raise InputError(f"observe must be one of {', '.join(OBSERVE)}, not {observe!r}")
    grids = {layer.name: checked_grid(layer.name, grid) for layer in layers}
    way = trace(model, layers, next(iter(calibration.batches(model))), forward=calibration.forward)
    norms = _norms_behind(model, layers, way.norms, observe)

    def prepare(layer: Layer) -> tuple[Scan, LevelProducts | None]:
        counts = [pruned_count(layer.total, s) for s in grids[layer.name]]
        measured = [k for k, count in enumerate(counts) if count > 0]
        norm = norms.get(layer.name)
        sums = ChannelSums(
            len(measured), layer.outputs, scale=norm.scale() if norm else None, shift=norm.shift() if norm else None
        )
        bias = way.biases.get(layer.name)
        beta = torch.zeros(layer.outputs, dtype=torch.float64) if bias is None else bias.double().cpu()
        products = LevelProducts(layer, [counts[k] for k in measured]) if measured else None
        if products is not None:
            products.prepare(way.geometries[layer.name], way.inputs[layer.name])
        shifts = layer.name in way.shiftable
        return Scan(grids[layer.name], tuple(measured), sums, beta, norm, shifts), products

    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as threads:  # NumPy's selections release the lock
        prepared = dict(zip(layers.names, threads.map(prepare, layers), strict=True))

    def handle(call: Call) -> Tensor:
        result, products = prepared[call.layer.name]
        output = call.compute()
        dense = call.channels(output)
        if products is None:
            result.sums.update(dense)
        else:
            for samples, pruned in products.chunks(call):
                result.sums.update(dense[samples], pruned)
        return output

    with evaluating(model) as network:
        own = layers.on(network)
        for batch in track(calibration.batches(model), "diagnosing", calibration.batch_count):
            with Watching(network, own, handle, samples=sample_count(batch)):
                calibration.run(network, batch)
    return {name: result for name, (result, _) in prepared.items()}


def checked_grid(layer: str, grid: Mapping[str, Sequence[float]]) -> tuple[float, ...]:
    """A layer's sparsities, rising within [0, 1], or an error that names the layer."""
    if layer not in grid:
        raise InputError(f"the grid gives no sparsities for layer {layer!r}")
    points = tuple(check_sparsity(s, f"a grid sparsity of layer {layer!r}") for s in grid[layer])
    if not points or any(b <= a for a, b in itertools.pairwise(points)):
        raise InputError(f"the grid of layer {layer!r} must rise and not be empty: {list(points)}")
    if len(points) > 255:
        raise InputError(f"the grid of layer {layer!r} has {len(points)} sparsities; at most 255 are possible")
    return points


def _norms_behind(model: nn.Module, layers: Layers, names: Mapping[str, str], observe: str) -> dict[str, Norm]:
    if observe == "layer":
        return {}
    without = [name for name in layers.names if name not in names]
    if without and observe == "norm":
        raise InputError(
            f"observe='norm' needs a BatchNorm right behind each layer; {', '.join(without)} has none "
            "(observe='norm-or-layer' measures such layers at their own output)"
        )
    modules = batch_norms(unwrapped(model))
    behind = {}
    for layer, name in names.items():
        norm = modules[name]
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean, var = norm.running_mean.double().cpu(), norm.running_var.double().cpu()
        weight = torch.ones_like(mean) if norm.weight is None else norm.weight.detach().double().cpu()
        shift = torch.zeros_like(mean) if norm.bias is None else norm.bias.detach().double().cpu()
        behind[layer] = Norm(weight, shift, norm.eps, mean, var)
    return behind
