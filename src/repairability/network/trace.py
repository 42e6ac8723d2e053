"""What happens when the model runs: in which order its layers are reached, how often, which BatchNorm follows, and
where a layer's branch is added to another.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from repairability._torch import batch_norms, evaluating, output_hooks, run
from repairability.errors import InputError
from repairability.network.layers import Layers

ADDITIONS = ("add", "add_", "__add__", "__iadd__", "__radd__")
"""The spellings of a sum of two tensors."""


@dataclass(frozen=True)
class Join:
    """An addition whose operand is the output of a layer, or of the BatchNorm behind it, as it is."""

    layer: str
    operand: int


@dataclass(frozen=True)
class Trace:
    """Layers in execution order (of their first call), calls per layer, the shape of each layer's input, the name of
    the BatchNorm that takes a layer's output as it is, the same where it takes nothing else (`own_norms`), and by their
    number among the pass's additions those that join a layer's branch with a tensor that is known without the layers
    after it.
    """

    order: tuple[str, ...]
    calls: dict[str, int]
    inputs: dict[str, tuple[int, ...]]
    norms: dict[str, str]
    own_norms: dict[str, str]
    joins: dict[int, Join] = field(default_factory=dict)


def trace(model: nn.Module, layers: Layers, batch: Tensor, *, needed: Collection[str] | None = None) -> Trace:
    """Run one image through `model` and watch. A layer that is never reached is an error that names it; where only some
    layers are `needed`, the others are left out of the trace.
    """
    calls: dict[str, int] = {}
    inputs: dict[str, tuple[int, ...]] = {}
    outputs: dict[int, tuple[str, Tensor, int]] = {}  # the tensors are held, so that no id is used twice
    norms: dict[str, str] = {}
    norm_calls: dict[str, int] = {}
    last = ""
    names = {model.get_submodule(layer.name): layer.name for layer in layers}
    norm_names = {module: name for name, module in batch_norms(model).items()}
    joins: dict[int, Join] = {}

    def watch(module: nn.Module, x: Tensor, output: Any) -> None:
        nonlocal last
        if isinstance(module, _BatchNorm):
            norm = norm_names[module]
            norm_calls[norm] = norm_calls.get(norm, 0) + 1
            layer = _whose(outputs, x)
            if layer is not None:
                norms[layer] = norm
                outputs[id(output)] = (layer, output, output._version)
        else:
            last = name = names[module]
            calls[name] = calls.get(name, 0) + 1
            inputs.setdefault(name, tuple(x.shape))
            outputs[id(output)] = (name, output, output._version)

    class Watching(TorchFunctionMode):
        additions = 0

        def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in ADDITIONS and both_tensors(args):
                for operand in (0, 1):
                    # only the layer reached last: what it is added to then hangs on no layer after it
                    if args[0].shape == args[1].shape and last and _whose(outputs, args[operand]) == last:
                        joins[self.additions] = Join(last, operand)
                self.additions += 1
            return func(*args, **(kwargs or {}))

    with evaluating(model), output_hooks(dict.fromkeys([*names, *norm_names], watch)), Watching():
        run(model, batch[:1])
    missed = [name for name in (layers.names if needed is None else needed) if name not in calls]
    if missed:
        raise InputError(f"the model never reaches {', '.join(missed)} on these images; skip such layers")
    own = {layer: norm for layer, norm in norms.items() if calls[layer] == norm_calls[norm] == 1}
    return Trace(tuple(calls), calls, inputs, norms, own, joins)


def both_tensors(args: tuple[Any, ...]) -> bool:
    return len(args) >= 2 and isinstance(args[0], Tensor) and isinstance(args[1], Tensor)


def _whose(outputs: dict[int, tuple[str, Tensor, int]], tensor: Tensor) -> str | None:
    """The layer whose output (normalised or not) this is, unchanged since."""
    layer, held, version = outputs.get(id(tensor), ("", None, 0))
    return layer if held is tensor and tensor._version == version else None
