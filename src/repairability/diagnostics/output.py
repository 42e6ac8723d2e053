"""Damage where it counts: what the network puts out while one of its layers is pruned and mended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from repairability._torch import copy_of, evaluating, workers
from repairability.algebra.sums import EPS
from repairability.calibration import CalibrationSet
from repairability.comparison import Comparison, Distance
from repairability.curves import FloatArray
from repairability.network.batches import Batch, sample_count, to_model
from repairability.network.calls import Call
from repairability.network.layers import Layers
from repairability.network.outputs import Output, picked
from repairability.network.watching import Watching

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

BATCH = 8
"""Samples that try one layer at one level together; half as many where there are too many layers for these."""

PASSES = 1
"""All trials together cost so many passes of the samples that the diagnosis has."""

MOST_LEVELS, FEWEST = 7, 2
"""So many levels of each layer are tried; its residual curve tells the others."""

SEED = 0
"""Of the deal of batches to layers."""

LEAST_SLOPE = 0.5
"""Damage at the output grows at least so fast with a layer's own, in logarithms."""


@dataclass(frozen=True, eq=False)
class Mended:
    """A layer pruned to one level and mended: other filters [G, R, K], what is added to each output [C], and the
    relative error of its own outputs, where it is not that of the layer's residual curve.
    """

    filters: Tensor
    offset: Tensor
    residual: float | None = None


@dataclass(frozen=True)
class OneTrial:
    """One batch that ran with one layer at one level, and how far it came out from the dense network."""

    batch: int
    layer: str
    level: int
    distance: float
    residual: float | None = None  # the layer's own error; else that of its curve at this level


class OutputProbe:
    """Runs held-out samples through the network with one layer replaced, and compares the outputs with the dense ones.

    A trial is one small batch. A layer gets its share of PASSES passes, spread over some of its levels; the batches are
    dealt anew for each. So the cost does not grow with the layers or the levels.
    """

    def __init__(
        self,
        model: nn.Module,
        calibration: CalibrationSet,
        layers: Layers,
        samples: tuple[int, int],
        *,
        output: Output = None,
        distance: Distance = None,
    ) -> None:
        """`distance`: the relative squared error unless said otherwise, also of logits: the KL of few samples hangs on
        the one that the network finds hardest.
        """
        self.calibration, self.picks = calibration, output
        # in each of them weights are replaced and put back, by a thread of its own
        on_cpu = all(layer.weight.device.type == "cpu" for layer in layers)
        self.copies = [copy_of(model) for _ in range(torch.get_num_threads() if on_cpu else 1)]
        self.layers = layers
        self.places = {name: i for i, name in enumerate(layers.names)}
        together = BATCH if PASSES * samples[1] >= FEWEST * BATCH * len(layers) else BATCH // 2
        self.batches: list[Batch] = list(calibration.held[samples[0] : samples[1]].split(together))
        trials = max(FEWEST, int(PASSES * samples[1]) // (together * len(layers)))  # of one layer
        self.levels = min(MOST_LEVELS, trials)
        self.each = trials // self.levels
        draw = np.random.default_rng(SEED)
        self.deals = [draw.permutation(len(self.batches)) for _ in range(self.levels)]
        self.comparison = Comparison(distance or "error")
        self.trials: list[OneTrial] = []
        self.dense = [x for part in self._in_threads(self._dense_outputs, self._shares(self.batches)) for x in part]

    def _shares(self, items: Sequence[_Item]) -> list[Sequence[_Item]]:
        """A run of them for each copy."""
        count = -(-len(items) // len(self.copies))
        return [items[i * count : (i + 1) * count] for i in range(len(self.copies))]

    def _in_threads(
        self, function: Callable[[nn.Module, Sequence[_Item]], _Result], shares: Sequence[Sequence[_Item]]
    ) -> list[_Result]:
        """What the function makes of each share, with a copy of the network for each; in order."""
        if len(self.copies) == 1 or len(shares[1]) == 0:
            return [function(self.copies[0], share) for share in shares if share]
        with workers(len(self.copies)) as pool:
            return list(pool.map(function, self.copies, shares))

    def _dense_outputs(self, copy: nn.Module, batches: Sequence[Batch]) -> list[Tensor]:
        with evaluating(copy) as network:
            return [self._output(network, batch) for batch in batches]

    def _output(self, network: nn.Module, batch: Batch) -> Tensor:
        return picked(self.calibration.run(network, to_model(batch, network)), self.picks)

    def tried(self, levels: int) -> list[int]:
        """Which of a layer's levels are tried: spread evenly over the upper three quarters, where there is damage."""
        low, count = levels // 4, min(self.levels, levels - levels // 4)
        return [low + round((i + 0.5) * (levels - low) / count - 0.5) for i in range(count)]

    def try_layer(self, name: str, levels: Mapping[int, Mended]) -> None:
        """Run this layer's trials: `levels` by their number."""
        first = self.places[name] * self.each
        trials = [
            (int(deal[j % len(deal)]), level, mended)
            for deal, (level, mended) in zip(self.deals, levels.items(), strict=False)
            for j in range(first, first + self.each)
        ]

        def tried(copy: nn.Module, share: Sequence[tuple[int, int, Mended]]) -> list[OneTrial]:
            own = self.layers.subset([name]).on(copy)
            dense = own[name].weight.detach().clone()
            done = []
            try:
                with evaluating(copy) as network:
                    watched, last = own.on(network), None
                    for number, level, mended in share:
                        if mended is not last:
                            own[name].write_(mended.filters)
                            last = mended
                        distance = self._distance(network, watched, number, mended.offset)
                        done.append(OneTrial(number, name, level, distance, mended.residual))
            finally:
                with torch.no_grad():
                    own[name].weight.copy_(dense)
            return done

        self.trials += [trial for part in self._in_threads(tried, self._shares(trials)) for trial in part]

    def _distance(self, network: nn.Module, own: Layers, number: int, offset: Tensor) -> float:
        batch = self.batches[number]

        def handle(call: Call) -> Tensor:
            output = call.compute()
            return output + call.along(offset.to(output.device, output.dtype))

        with Watching(network, own, handle, samples=sample_count(batch)):
            output = self._output(network, batch)
        return float(self.comparison(self.dense[number], output).mean())

    def curves(self, residual: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The damage at the output of every layer and level, smoothed along the layer's own `residual` curve:

            log distance = a_layer + b log residual_layer(level) + c_batch,

        by least squares over all trials, with one b >= LEAST_SLOPE for all layers and c of mean 0; then exp(a + b log
        residual). What a batch finds hard is its own affair (c); a layer's few trials then tell its one number, a.
        """
        return _smoothed(self.trials, residual, len(self.batches))


def _smoothed(trials: Sequence[OneTrial], residual: Mapping[str, FloatArray], batches: int) -> dict[str, FloatArray]:
    names = list(residual)
    logs = {name: np.log(np.maximum(residual[name], EPS)) for name in names}
    rows = len(trials)
    matrix, right = np.zeros((rows, len(names) + 1 + batches)), np.empty(rows)
    floor = max(1e-9, 1e-6 * max((trial.distance for trial in trials), default=1.0))
    for i, trial in enumerate(trials):
        matrix[i, names.index(trial.layer)] = 1.0
        own = logs[trial.layer][trial.level] if trial.residual is None else np.log(max(trial.residual, EPS))
        matrix[i, len(names)] = own
        matrix[i, len(names) + 1 + trial.batch] = 1.0
        right[i] = np.log(max(trial.distance, floor))
    # the batches' own terms are drawn to zero mean; a weak pull keeps a layer or batch without trials finite
    pull = np.diag(np.concatenate([np.full(len(names) + 1, 1e-6), np.full(batches, 0.1)]))
    solution = np.linalg.solve(matrix.T @ matrix + pull, matrix.T @ right)
    slope = float(solution[len(names)])
    if slope < LEAST_SLOPE:  # held there, and the rest fitted to what it leaves
        slope = LEAST_SLOPE
        right = right - slope * matrix[:, len(names)]
        matrix[:, len(names)] = 0.0
        solution = np.linalg.solve(matrix.T @ matrix + pull, matrix.T @ right)
    return {
        name: np.where(residual[name] > 0, np.exp(solution[i] + slope * logs[name]), 0.0)
        for i, name in enumerate(names)
    }
