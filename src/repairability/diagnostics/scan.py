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
    counts = {layer.name: [pruned_count(layer.total, s) for s in grids[layer.name]] for layer in layers}
    measured = {name: tuple(k for k, count in enumerate(own) if count > 0) for name, own in counts.items()}

    selected: dict[str, LevelProducts | None] = {}

    def select(pending: Iterator[Layer]) -> None:
        """Rank the weights of one layer after the other, whichever the other threads have not taken."""
        for layer in pending:
            levels = [counts[layer.name][k] for k in measured[layer.name]]
            products = selected[layer.name] = LevelProducts(layer, levels) if levels else None
            if products is not None:
                products.select()

    def prepare(layer: Layer, products: LevelProducts | None) -> Scan:
        name = layer.name
        norm, bias = norms.get(name), way.biases.get(name)
        scale, shift = (norm.scale(), norm.shift()) if norm else (None, None)
        sums = ChannelSums(len(measured[name]), layer.outputs, scale=scale, shift=shift)
        beta = torch.zeros(layer.outputs, dtype=torch.float64) if bias is None else bias.double().cpu()
        if products is not None:
            products.prepare(way.geometries[name], way.inputs[name])
        return Scan(grids[name], measured[name], sums, beta, norm, name in way.shiftable)

    def measure(batch: Batch) -> dict[str, ChannelSums]:
        """One dense pass of some samples, and the sums of the layers that it reached."""
        sums: dict[str, ChannelSums] = {}
        scratch = Scratch()

        def handle(call: Call) -> Tensor:
            name = call.layer.name
            own, products = sums.setdefault(name, scans[name].sums.empty()), selected[name]
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
    count = torch.get_num_threads() if on_cpu else 1
    largest = sorted(layers, key=lambda layer: -layer.total)  # first, so that no thread is left with one at the end
    with workers(count) if count > 1 else nullcontext() as pool:
        pending = iter(largest)
        # beside the first few samples, which take this thread: one more than there are cores would make all wait
        ranking = [pool.submit(select, pending) for _ in range(count - 1)] if pool else []
        try:
            with alone():  # sharing a few samples costs more than it gains, and much beside a busy process
                way = trace(model, layers, next(iter(calibration.batches(model))), forward=calibration.forward)
                select(pending)
        finally:
            deque(pending, maxlen=0)  # after an error or an interrupt: nobody begins another
        norms = _norms_behind(model, layers, way.norms, observe)
        for others in ranking:
            others.result()
        products = (selected[layer.name] for layer in largest)
        prepared = (pool.map if pool else map)(prepare, largest, products)
        found = dict(zip((layer.name for layer in largest), prepared, strict=True))
        scans = {name: found[name] for name in layers.names}
        # a network that draws random numbers draws them in one order only where its passes come one after the other;
        # one that normalises by the batch gives another answer to a part of it
        if way.draws or normalises_by_batch(unwrapped(model)):
            pool, count = None, 1
        parts = _parts(calibration.batches(model), count)
        sums_of_parts = _in_order(pool, measure, parts, 2 * count) if pool else map(measure, parts)
        held = calibration.held[: calibration.count].split(calibration.batch_size)
        for sums in track(sums_of_parts, "diagnosing", sum(1 for _ in _parts(held, count))):
            for name, own in sums.items():
                scans[name].sums.add(own)
    return scans


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
