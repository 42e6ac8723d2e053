"""Candidates: every weight that a product could use, and why some of them are not to be touched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repairability._torch import is_finite, is_lazy, unwrapped
from repairability.errors import InputError
from repairability.network.kinds import kind_of
from repairability.network.layers import NOT_ORDINARY, Layer, Layers, part_of, tensor_of

ITS_WEIGHT = "its weight "
SHARED = f"{ITS_WEIGHT}is also held by"
"""How the reason begins that keeps a weight of several modules from being pruned."""


@dataclass(frozen=True)
class Candidate:
    """A layer that could be pruned, or the sentence why it is not."""

    layer: Layer
    why_not: str = ""

    @property
    def shared(self) -> bool:
        return self.why_not.startswith(SHARED)


def candidates(network: nn.Module) -> list[Candidate]:
    """Every weight of a module of a known kind, each under its first name, in definition order."""
    found: list[Candidate] = []
    holders = holders_of(network)
    for name, module in network.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            found += [Candidate(x, held_by(holders, network, x, name)) for x in _projections(name, module)]
        kind = kind_of(module)
        if kind is None:
            continue
        groups = int(getattr(module, "groups", 1))
        place = f"{name}.weight" if name else "weight"
        try:
            weight = tensor_of(network, place)
        except InputError:
            found.append(Candidate(Layer(name, kind.name, _computed(module), groups=groups), ITS_WEIGHT + NOT_ORDINARY))
            continue
        layer = Layer(name, kind.name, weight, groups=groups)
        strange = ITS_WEIGHT + NOT_ORDINARY if type(weight) not in (nn.Parameter, Tensor) or weight.is_complex() else ""
        found.append(Candidate(layer, strange or held_by(holders, network, layer, name)))
    return found


def _projections(name: str, module: nn.MultiheadAttention) -> Iterator[Layer]:
    """The packed projections of an attention as three layers, or its separate ones."""
    at = f"{name}." if name else ""
    if module.in_proj_weight is None:
        for letter in "qkv":
            place = f"{at}{letter}_proj_weight"
            yield Layer(place, "linear", module.get_parameter(f"{letter}_proj_weight"), parameter=place)
        return
    width = module.embed_dim
    for i, letter in enumerate("qkv"):
        rows = (i * width, (i + 1) * width)
        place = f"{at}in_proj_weight"
        yield Layer(f"{place}.{letter}", "linear", part_of(module.in_proj_weight, rows), parameter=place, part=rows)


def holders_of(network: nn.Module) -> dict[int, list[str]]:
    """id of a parameter -> the modules that hold it, each once, under its first name."""
    holders: dict[int, list[str]] = {}
    for name, module in network.named_modules():
        for parameter in () if isinstance(module, torch.jit.ScriptModule) else module._parameters.values():
            if parameter is not None:
                holders.setdefault(id(parameter), []).append(name)
    return holders


def held_by(holders: dict[int, list[str]], network: nn.Module, layer: Layer, name: str) -> str:
    others = [other for other in holders.get(id(tensor_of(network, layer.place)), ()) if other != name]
    return f"{SHARED} {', '.join(others)}" if others else ""


def _computed(module: nn.Module) -> Tensor:
    """A weight that is no parameter, for its size alone: to compute it could change the module (spectral norm does)."""
    known = [
        vars(module).get("weight"),
        *(p for n, p in module.named_parameters() if n.startswith("parametrizations.weight")),
    ]
    tensors = [x.detach() for x in known if isinstance(x, Tensor) and not is_lazy(x)]
    return max(tensors, key=torch.numel, default=torch.empty(0))


def refittable_layers(model: nn.Module, *, shared: bool = False) -> Layers:
    """Every layer of a known kind whose weight is an ordinary, finite parameter of its own: what a refit of everything
    may touch. One that is not (weight-normed, lazy, nan, `shared`) is nobody's choice here, so it is left out.
    """
    layers: dict[object, Layer] = {}
    for x in candidates(unwrapped(model)):
        if (not x.why_not or (shared and x.shared)) and is_finite(x.layer.weight):
            layers.setdefault(id(x.layer.weight), x.layer)  # of several names for one weight, the first
    return Layers(layers.values(), sum(layer.total for layer in layers.values()))


def parameter_count(network: nn.Module) -> int:
    """Everything that a network learned."""
    return sum(parameter.numel() for parameter in network.parameters() if not is_lazy(parameter))
