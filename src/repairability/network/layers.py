"""Layer and Layers: the weights that may be pruned, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import overload

import numpy as np
import torch
from torch import Tensor, nn

from repairability._torch import unwrapped
from repairability.errors import InputError, unknown
from repairability.network.kinds import KINDS, Kind
from repairability.tables import Table, percent


@dataclass(frozen=True, eq=False)
class Layer:
    """One prunable weight of a model. A module's own is called by the module's dotted name; any other parameter by its
    own, and a part of one (of a packed projection, of a batch of matrices) by the part.
    """

    name: str
    kind: str  # of `kinds.KINDS`
    weight: Tensor  # the parameter, or a view of its part
    projection: bool = False
    groups: int = 1
    parameter: str = ""  # its dotted name; where nothing is said, the module's weight
    part: int | tuple[int, int] | None = None  # one matrix of the parameter, or rows of it

    @property
    def place(self) -> str:
        return self.parameter or (f"{self.name}.weight" if self.name else "weight")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    @property
    def total(self) -> int:
        return self.weight.numel()

    @property
    def outputs(self) -> int:
        """How many channels it puts out."""
        return self.shape[1] * self.groups if self._kind.transposed else self.shape[0]

    @property
    def turned(self) -> bool:
        """Whether the weight's own order is another than that of its filters."""
        return self._kind.transposed

    @property
    def _kind(self) -> Kind:
        return KINDS[self.kind]

    def filters(self, tensor: Tensor | None = None) -> Tensor:
        """The weight, or a tensor of its shape, as filters [G, R, K]."""
        return self._kind.filters(self.weight.detach() if tensor is None else tensor, self.groups)

    def unfiltered(self, filters: Tensor) -> Tensor:
        """Filters [G, R, K] back in the weight's shape."""
        return self._kind.weight(filters, self.shape)

    def write_(self, filters: Tensor) -> None:
        """Other filters [G, R, K] into the weight, of our copy."""
        with torch.no_grad():
            self.weight.copy_(self.unfiltered(filters).to(self.weight.device, self.weight.dtype))

    def magnitudes(self) -> np.ndarray:
        """|w| in flat order [total]; float64 stays, every other dtype becomes float32 (exactly)."""
        weight = self.weight.detach()
        if weight.is_meta:
            raise InputError(f"layer {self.name!r} is on the meta device and holds no weights to rank")
        wide = weight if weight.dtype == torch.float64 else weight.float()
        return np.asarray(wide.abs().flatten().cpu().numpy())


class Layers(Sequence[Layer]):
    """The prunable layers of a model in definition order, and how many weights of their types exist in all.

    `n_all` counts every weight of the chosen types, the skipped ones included: the base of the paper's achieved
    global sparsity (for convolutions: all convolution weights, the dense stem too); not the classifier, where it stays
    dense, nor what is left out. `parameters` counts everything that the model learned. `left_out` says which layers of
    these types are not pruned although nobody skipped them, and why.
    """

    def __init__(
        self,
        layers: Iterable[Layer],
        n_all: int,
        parameters: int | None = None,
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        self._layers = tuple(layers)
        self._index = {layer.name: i for i, layer in enumerate(self._layers)}
        self.n_all = n_all
        self.parameters = parameters
        self.left_out: dict[str, str] = dict(left_out or {})

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._layers)

    @overload
    def __getitem__(self, key: int | str) -> Layer: ...

    @overload
    def __getitem__(self, key: slice) -> Layers: ...

    def __getitem__(self, key: int | str | slice) -> Layer | Layers:
        if isinstance(key, slice):
            return self.subset(layer.name for layer in self._layers[key])
        if isinstance(key, int):
            return self._layers[key]
        if key not in self._index:
            raise unknown("layer", key, self._index)
        return self._layers[self._index[key]]

    def __contains__(self, item: object) -> bool:
        """Whether a layer, or a layer of this name, is among them."""
        return item in self._index if isinstance(item, str) else item in self._layers

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._index)

    @property
    def totals(self) -> dict[str, int]:
        return {layer.name: layer.total for layer in self}

    @property
    def total(self) -> int:
        return sum(layer.total for layer in self)

    def matching(self, pattern: str) -> list[str]:
        """The names a glob selects; a glob that selects nothing is an error, since it is a misspelling."""
        return matching(self._index, pattern)

    def subset(self, names: Iterable[str]) -> Layers:
        """These layers only, in this object's order, as a budget of their own (n_all = their weights)."""
        chosen = set(names)
        layers = [layer for layer in self if layer.name in chosen]
        return Layers(layers, sum(layer.total for layer in layers), self.parameters)

    @property
    def coverage(self) -> float | None:
        """The share of all parameters that may be pruned."""
        return None if self.parameters is None else self.total / max(1, self.parameters)

    def on(self, model: nn.Module) -> Layers:
        """The same layers in another copy of the network: its weights under these names, whatever else it holds."""
        others = []
        network = unwrapped(model)
        for layer in self:
            weight = part_of(tensor_of(network, layer.place), layer.part)
            if tuple(weight.shape) != layer.shape:
                shape = tuple(weight.shape)
                raise InputError(f"layer {layer.name!r} has shape {layer.shape} here and {shape} in the other")
            others.append(replace(layer, weight=weight))
        return Layers(others, self.n_all, self.parameters, self.left_out)

    def table(self) -> Table:
        rows = [
            (x.name, x.kind, "x".join(map(str, x.shape)), f"{x.total:,}", "yes" if x.projection else "") for x in self
        ]
        caption = f"{len(self)} layers, {self.total:,} prunable of {self.n_all:,} weights"
        if self.coverage is not None:
            caption += f"; {percent(self.coverage)} of all {self.parameters:,} parameters"
        if self.left_out:
            caption += "".join(f"\nleft out: {name}: {why}" for name, why in self.left_out.items())
        return Table(("layer", "kind", "shape", "weights", "projection"), rows, caption=caption)

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def tensor_of(model: nn.Module, name: str) -> Tensor:
    """The parameter of this dotted name; under a mask of `torch.nn.utils.prune`, what the mask leaves of it."""
    owner, _, attribute = name.rpartition(".")
    try:
        module = model.get_submodule(owner)
    except AttributeError:
        raise unknown("layer", owner, [x for x, _ in model.named_modules()]) from None
    parameter = module._parameters.get(attribute)
    if parameter is None:
        original, mask = (module._parameters.get(f"{attribute}_orig"), module._buffers.get(f"{attribute}_mask"))
        if original is not None and mask is not None:
            return (original * mask).detach()
    if parameter is None or isinstance(parameter, nn.parameter.UninitializedParameter):
        raise InputError(f"the weight of layer {owner!r} {NOT_ORDINARY}; make it permanent before pruning")
    return parameter


NOT_ORDINARY = "is not an ordinary parameter (a parametrization, a weight that is computed, or a lazy layer)"


def part_of(parameter: Tensor, part: int | tuple[int, int] | None) -> Tensor:
    """The whole, one matrix, or some rows; a view that can be written through."""
    if part is None:
        return parameter
    whole = parameter.detach()
    return whole[part] if isinstance(part, int) else whole[part[0] : part[1]]


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """The names a glob selects; a glob that selects nothing is an error, since it is a misspelling."""
    names = list(names)
    chosen = [name for name in names if fnmatchcase(name, pattern)]
    if not chosen:
        raise unknown("layer or pattern", pattern, names)
    return chosen
