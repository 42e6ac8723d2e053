"""The one pass: every layer at every grid sparsity, from a single forward pass of the dense model.

While only layer l is pruned, its input is the dense input. So in a hook on layer l the dense forward pass offers all
that is needed: the input, from which the outputs at all levels follow, and the dense output to compare them with.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from repairability._torch import alone, batch_norms, evaluating, normalises_by_batch, unwrapped, workers
from repairability.algebra.scratch import Scratch
from repairability.algebra.sums import ChannelSums, OutputMoments
from repairability.allocation import check_sparsity, pruned_count
from repairability.calibration import CalibrationSet
from repairability.diagnostics.products import LevelProducts
from repairability.errors import InputError
from repairability.network.batches import Batch, sample_count
from repairability.network.calls import Call
from repairability.network.layers import Layer, Layers
from repairability.network.samples import Samples
from repairability.network.trace import trace
from repairability.network.watching import Watching
from repairability.progress import track
from repairability.repairs.response import Norm

_Result = TypeVar("_Result")

LITERAL = "literal"
"""At the layer's own output too, but in a network that was repaired for it (`literal_residuals`)."""

OBSERVE = ("layer", "norm", "norm-or-layer", LITERAL)


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
    with alone():  # a few samples: sharing them costs more than it gains, and much beside a busy process
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

    def measure(batch: Batch) -> dict[str, ChannelSums]:
        """One dense pass of some samples, and the sums of the layers that it reached."""
        sums: dict[str, ChannelSums] = {}
        scratch = Scratch()

        def handle(call: Call) -> Tensor:
            result, products = prepared[call.layer.name]
            own = sums.setdefault(call.layer.name, result.sums.empty())
            output = call.compute()
            dense = call.channels(output)
            if products is None:
                own.update(dense)
            else:
                for part, pruned in products.chunks(call, scratch):
                    own.update(dense[part], pruned, scratch)
            return output

        samples = sample_count(batch)
        with evaluating(model) as network, Watching(network, layers.on(network), handle, samples=samples):
            calibration.run(network, batch)
        return sums

    on_cpu = all(layer.weight.device.type == "cpu" for layer in layers)
    # a network that draws random numbers draws them in one order only where its passes come one after the other;
    # one that normalises by the batch gives another answer to a part of it
    whole = way.draws or normalises_by_batch(unwrapped(model))
    count = torch.get_num_threads() if on_cpu and not whole else 1
    with workers(count) if count > 1 else nullcontext() as pool:
        prepared = dict(zip(layers.names, pool.map(prepare, layers) if pool else map(prepare, layers), strict=True))
        parts = _parts(calibration.batches(model), count)
        measured = _in_order(pool, measure, parts, 2 * count) if pool else map(measure, parts)
        held = calibration.held[: calibration.count].split(calibration.batch_size)
        for sums in track(measured, "diagnosing", sum(1 for _ in _parts(held, count))):
            for name, own in sums.items():
                prepared[name][0].sums.add(own)
    return {name: result for name, (result, _) in prepared.items()}


def _parts(batches: Iterable[Batch], count: int) -> Iterator[Batch]:
    """Each batch in so many parts, one for each thread: together they take the memory of the batch."""
    for batch in batches:
        yield from Samples((batch,)).split(-(-sample_count(batch) // count))


def _in_order(
    pool: Executor, function: Callable[[Batch], _Result], batches: Iterable[Batch], most: int
) -> Iterator[_Result]:
    """What the function makes of each batch, in their order, whichever is done first; at most so many are begun."""
    begun: deque[Future[_Result]] = deque()
    for batch in batches:
        begun.append(pool.submit(function, batch))
        if len(begun) == most:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


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
    if observe in ("layer", LITERAL):
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
