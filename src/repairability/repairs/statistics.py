"""The pooled moments of layers' outputs, over the calibration images."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from repairability._torch import evaluating
from repairability.algebra.sums import ChannelSums, OutputMoments
from repairability.calibration import CalibrationSet
from repairability.errors import InputError
from repairability.network.batches import sample_count
from repairability.network.calls import Call
from repairability.network.layers import Layers
from repairability.network.watching import Watching

Statistics = Mapping[str, OutputMoments]
"""layer -> pooled mean and biased variance of its output, [C]"""


def measure_statistics(
    model: nn.Module, layers: Layers, calibration: CalibrationSet, *, every: bool = True
) -> Statistics:
    """One forward pass; a layer called several times pools its calls. The model is only read. A layer that is not
    reached is an error, or, unless `every` one is wanted, left out.
    """
    sums = {layer.name: ChannelSums(0, layer.outputs) for layer in layers}

    def measured(call: Call) -> Tensor:
        output = call.compute()
        sums[call.layer.name].update(call.channels(output))
        return output

    with evaluating(model) as network:
        own = layers.on(network)
        for batch in calibration.batches(model):
            with Watching(network, own, measured, samples=sample_count(batch)):
                calibration.run(network, batch)
    missed = [name for name, total in sums.items() if not total.count]
    if missed and every:
        raise InputError(f"the model never reaches {', '.join(missed)} on these images; skip such layers")
    return {name: total.dense_moments() for name, total in sums.items() if total.count}
