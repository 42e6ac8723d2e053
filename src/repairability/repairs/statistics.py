"""The pooled moments of layers' outputs, over the calibration images."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from repairability._torch import OutputHook, evaluating, output_hooks, run
from repairability.algebra.sums import ChannelSums, OutputMoments
from repairability.calibration import CalibrationSet
from repairability.errors import InputError
from repairability.network.layers import Layer, Layers

Statistics = Mapping[str, OutputMoments]
"""layer -> pooled mean and biased variance of its output, [C]"""


def measure_statistics(model: nn.Module, layers: Layers, calibration: CalibrationSet) -> Statistics:
    """One forward pass; a layer called several times pools its calls. The model is only read."""
    sums = {layer.name: ChannelSums(0, layer.shape[0]) for layer in layers}

    def measuring(layer: Layer) -> OutputHook:
        def hook(module: nn.Module, x: Tensor, output: Tensor) -> None:
            sums[layer.name].update(layer.channels(output))

        return hook

    hooks = {model.get_submodule(layer.name): measuring(layer) for layer in layers}
    with evaluating(model), output_hooks(hooks):
        for batch in calibration.batches(model):
            run(model, batch)
    missed = [name for name, total in sums.items() if not total.count]
    if missed:
        raise InputError(f"the model never reaches {', '.join(missed)} on these images; skip such layers")
    return {name: total.dense_moments() for name, total in sums.items()}
