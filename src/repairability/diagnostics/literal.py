"""rr by the letter: the whole repair on a copy of the network in which one layer alone is pruned.

The one pass holds the BatchNorms upstream of a layer, since nothing there was pruned; so "cr+bn" is "cr" at the layer's
own output. The paper applies CR+BN to the single-layer model: recalibration then moves every BatchNorm of it, also
those upstream, and with them the layer's input. A copy, a repair and two passes for every layer and level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor, nn

from repairability._torch import copy_of, evaluating
from repairability.algebra.sums import ChannelSums
from repairability.allocation import Allocation
from repairability.calibration import CalibrationSet
from repairability.curves import FloatArray
from repairability.masks import apply_masks_, make_masks
from repairability.network.batches import sample_count
from repairability.network.calls import Call
from repairability.network.layers import Layers
from repairability.network.watching import Watching
from repairability.progress import track
from repairability.repairs import Repair, RepairContext, measure_statistics


def literal_residuals(
    model: nn.Module, calibration: CalibrationSet, layers: Layers, grid: Mapping[str, Sequence[float]], repair: Repair
) -> dict[str, FloatArray]:
    """layer -> d(dense output, output in the repaired single-layer network) at each of its sparsities; 0 where a level
    prunes nothing. The model is only read.
    """
    statistics = measure_statistics(model, layers, calibration) if repair.needs_statistics else {}
    residuals = {layer.name: np.zeros(len(grid[layer.name])) for layer in layers}
    for layer in track(layers, "repairing single-layer networks", len(layers)):
        one = layers.subset([layer.name])
        wanted = _outputs(model, one, calibration)
        for k, s in enumerate(grid[layer.name]):
            plan = Allocation({layer.name: float(s)}, {layer.name: layer.total}, layer.total)
            if plan.pruned(layer.name):
                network = copy_of(model)
                apply_masks_(network, make_masks(one, plan))
                repair(RepairContext(network, one.on(network), model, calibration, statistics))
                residuals[layer.name][k] = _distance(wanted, _outputs(network, one, calibration))
    return residuals


def _distance(dense: Sequence[Tensor], repaired: Sequence[Tensor]) -> float:
    """d(a, b) (eq:distance) between two networks' outputs of one layer."""
    sums = ChannelSums(1, dense[0].shape[1])
    for wanted, found in zip(dense, repaired, strict=True):
        sums.update(wanted, found[None])
    return float(sums.distance()[0])


def _outputs(model: nn.Module, one: Layers, calibration: CalibrationSet) -> list[Tensor]:
    """The layer's outputs [N, C, P] over the statistics' images, one for each time that a pass reaches it."""
    outputs: list[Tensor] = []

    def kept(call: Call) -> Tensor:
        output = call.compute()
        outputs.append(call.channels(output).detach().clone())
        return output

    with evaluating(model) as network:
        own = one.on(network)
        for batch in calibration.batches(model):
            with Watching(network, own, kept, samples=sample_count(batch)):
                calibration.run(network, batch)
    return outputs
