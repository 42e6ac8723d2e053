"""What happens when the model runs: in which order its layers are reached, how often, and which BatchNorm follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from repairability._torch import batch_norms, evaluating, output_hooks, run
from repairability.errors import InputError
from repairability.layers import Layers


@dataclass(frozen=True)
class Trace:
    """Layers in execution order (of their first call), calls per layer, the shape of each layer's input, and the
    name of the BatchNorm that takes a layer's output as it is.
    """

    order: tuple[str, ...]
    calls: dict[str, int]
    inputs: dict[str, tuple[int, ...]]
    norms: dict[str, str]


def trace(model: nn.Module, layers: Layers, batch: Tensor) -> Trace:
    """Run one image through `model` and watch; a layer that is never reached is an error that names it."""
    calls: dict[str, int] = {}
    inputs: dict[str, tuple[int, ...]] = {}
    outputs: dict[int, tuple[str, Tensor]] = {}  # the tensors are held, so that no id is used twice
    norms: dict[str, str] = {}
    names = {model.get_submodule(layer.name): layer.name for layer in layers}
    norm_names = {module: name for name, module in batch_norms(model).items()}

    def watch(module: nn.Module, x: Tensor, output: Any) -> None:
        if isinstance(module, _BatchNorm):
            layer, taken = outputs.get(id(x), ("", None))
            if taken is x:
                norms[layer] = norm_names[module]
        else:
            name = names[module]
            calls[name] = calls.get(name, 0) + 1
            inputs.setdefault(name, tuple(x.shape))
            outputs[id(output)] = (name, output)

    with evaluating(model), output_hooks(dict.fromkeys([*names, *norm_names], watch)):
        run(model, batch[:1])
    missed = [name for name in layers.names if name not in calls]
    if missed:
        raise InputError(f"the model never reaches {', '.join(missed)} on these images; skip such layers")
    return Trace(tuple(calls), calls, inputs, norms)
