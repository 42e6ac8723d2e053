"""Which weights may be pruned: Layer, Layers, prunable_layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import overload

import numpy as np
import torch
from torch import Tensor, nn

from repairability.errors import InputError, unknown
from repairability.tables import Table

FIRST_CONV = "@first"
"""In `skip`: the first convolution in definition order (the stem), whatever its name."""

PROJECTIONS = ("*downsample*", "*shortcut*", "*skip*")
"""Names by which shortcut (projection) layers are known, unless the user says otherwise."""

CONVOLUTIONS: dict[str, type[nn.Module]] = {"conv1d": nn.Conv1d, "conv2d": nn.Conv2d, "conv3d": nn.Conv3d}
KINDS: dict[str, type[nn.Module]] = {**CONVOLUTIONS, "conv": nn.Conv2d, "linear": nn.Linear}
"""What `types` may name; "conv" is Conv2d, the method's own setting."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One prunable weight of a model, under its dotted module name."""

    name: str
    kind: str  # conv1d, conv2d, conv3d or linear
    weight: nn.Parameter
    projection: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    @property
    def total(self) -> int:
        return self.weight.numel()

    def channels(self, output: Tensor) -> Tensor:
        """An output of this layer as [N, C, P]: samples, channels, positions. A Linear's [N, ..., C] likewise."""
        if self.kind == "linear":
            rows = output if output.dim() > 1 else output[None]
            return rows.movedim(-1, 1).flatten(2) if rows.dim() > 2 else rows[..., None]
        batched = output if output.dim() == self.weight.dim() else output[None]
        return batched.flatten(2)

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
    global sparsity (for convolutions: all convolution weights, the dense stem too).
    """

    def __init__(self, layers: Iterable[Layer], n_all: int) -> None:
        self._layers = tuple(layers)
        self._index = {layer.name: i for i, layer in enumerate(self._layers)}
        self.n_all = n_all

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
        return _matching(self._index, pattern)

    def subset(self, names: Iterable[str]) -> Layers:
        """These layers only, in this object's order, as a budget of their own (n_all = their weights)."""
        chosen = set(names)
        layers = [layer for layer in self if layer.name in chosen]
        return Layers(layers, sum(layer.total for layer in layers))

    def on(self, model: nn.Module) -> Layers:
        """The same layers in another copy of the network: its weights under these names, whatever else it holds."""
        others = []
        for layer in self:
            other = Layer(layer.name, layer.kind, _weight_of(model, layer.name), layer.projection)
            if other.shape != layer.shape:
                raise InputError(f"layer {layer.name!r} has shape {layer.shape} here and {other.shape} in the other")
            others.append(other)
        return Layers(others, self.n_all)

    def table(self) -> Table:
        rows = [
            (x.name, x.kind, "x".join(map(str, x.shape)), f"{x.total:,}", "yes" if x.projection else "") for x in self
        ]
        caption = f"{len(self)} layers, {self.total:,} prunable of {self.n_all:,} weights"
        return Table(("layer", "kind", "shape", "weights", "projection"), rows, caption=caption)

    def __str__(self) -> str:
        return str(self.table())


def bias_of(module: nn.Module) -> Tensor | None:
    """A layer's own bias, where it has one."""
    bias = module._parameters.get("bias")
    return None if bias is None else bias.detach()


def prunable_layers(
    model: nn.Module,
    *,
    types: Sequence[str] = ("conv",),
    skip: Sequence[str] = (FIRST_CONV,),
    only: Sequence[str] = ("*",),
    projections: Sequence[str] = PROJECTIONS,
) -> Layers:
    """The layers of `model` that may be pruned, in definition order.

    `types` are "conv" (= "conv2d"), "conv1d", "conv3d", "linear". `skip` and `only` are globs on dotted names; in
    `skip`, "@first" stands for the first convolution of the model, so `skip=("@first", "layer4.*")` adds to the
    default and `skip=()` prunes the stem too. A module reachable under two names, or a weight shared by two
    modules, counts once, under its first name. `projections` are the globs by which shortcut layers are known.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"a model must be a torch.nn.Module, not {type(model).__name__}")
    for name, given in {"types": types, "skip": skip, "only": only, "projections": projections}.items():
        if isinstance(given, str):
            raise InputError(f"{name} takes a sequence of names, not the string {given!r}; write ({given!r},)")
    for kind in types:
        if kind not in KINDS:
            raise unknown("layer type", kind, KINDS)
    candidates = _candidates(model, tuple(KINDS[kind] for kind in types))
    if not candidates:
        raise InputError(f"{type(model).__name__} has no layer of type {', '.join(types)}: nothing to prune")

    skipped = set()
    for pattern in skip:
        skipped |= {_first_convolution(model)} if pattern == FIRST_CONV else set(_matching(candidates, pattern))
    chosen = {name for pattern in only for name in _matching(candidates, pattern)} - skipped
    layers = [_checked_layer(model, name, projections) for name in candidates if name in chosen]
    if not layers:
        raise InputError(
            f"nothing is left to prune in {type(model).__name__}: types={tuple(types)}, only={tuple(only)} and "
            f"skip={tuple(skip)} leave none of {', '.join(candidates)}"
        )
    return Layers(layers, sum(module.get_parameter("weight").numel() for module in candidates.values()))


def layers_named(model: nn.Module | Layers, names: Iterable[str]) -> Layers:
    """The layers of `model` under exactly these names, in definition order; no other layer is looked at."""
    if isinstance(model, Layers):
        return model.subset([model[name].name for name in names])
    known = [name for name, module in model.named_modules() if _is_known(module)]
    wanted = set(names)
    for name in wanted - set(known):
        raise unknown("layer", name, known)
    layers = [_checked_layer(model, name) for name in known if name in wanted]
    return Layers(layers, sum(layer.total for layer in layers))


def refittable_layers(model: nn.Module) -> Layers:
    """Every layer of a known kind whose weight is an ordinary, finite parameter: what a refit of everything may touch.
    A layer that is not (weight-normed, lazy, nan) is nobody's choice here, so it is left out instead of refused.
    """
    seen: dict[int, Layer] = {}
    for name, module in model.named_modules():
        if _is_known(module) and _is_ordinary(module):
            weight = module.get_parameter("weight")
            if _is_finite(weight):
                seen.setdefault(id(weight), Layer(name, _kind(module), weight))
    return Layers(seen.values(), sum(layer.total for layer in seen.values()))


def _candidates(model: nn.Module, classes: tuple[type[nn.Module], ...]) -> dict[str, nn.Module]:
    """Every module of these classes under its first name; of modules that share a weight, the first."""
    modules: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for name, module in model.named_modules():
        if not isinstance(module, classes):
            continue
        weight = _weight_of(model, name)
        if id(weight) not in seen:
            seen.add(id(weight))
            modules[name] = module
    return modules


def _checked_layer(model: nn.Module, name: str, projections: Sequence[str] = PROJECTIONS) -> Layer:
    weight = _weight_of(model, name)
    if not _is_finite(weight):
        raise InputError(f"the weight of layer {name!r} holds nan or inf; such weights cannot be ranked")
    projection = any(fnmatchcase(name, pattern) for pattern in projections)
    return Layer(name, _kind(model.get_submodule(name)), weight, projection)


def _is_known(module: nn.Module) -> bool:
    return isinstance(module, tuple(KINDS.values()))


def _is_ordinary(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return weight is not None and not isinstance(weight, nn.parameter.UninitializedParameter)


def _weight_of(model: nn.Module, name: str) -> nn.Parameter:
    try:
        module = model.get_submodule(name)
    except AttributeError:
        raise unknown("layer", name, [x for x, _ in model.named_modules()]) from None
    if not _is_ordinary(module):
        raise InputError(
            f"the weight of layer {name!r} is not an ordinary parameter (an existing pruning mask, a "
            "parametrization or a lazy layer); make it permanent before pruning"
        )
    return module.get_parameter("weight")


def _first_convolution(model: nn.Module) -> str:
    classes = tuple(CONVOLUTIONS.values())
    return next((name for name, module in model.named_modules() if isinstance(module, classes)), "")


def _kind(module: nn.Module) -> str:
    return next(kind for kind, cls in KINDS.items() if isinstance(module, cls))


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    names = list(names)
    chosen = [name for name in names if fnmatchcase(name, pattern)]
    if not chosen:
        raise unknown("layer or pattern", pattern, names)
    return chosen


def _is_finite(weight: Tensor) -> bool:
    if weight.is_meta or weight.numel() == 0:
        return True
    low, high = (float(x) for x in torch.aminmax(weight.detach()))  # nan spreads through min and max
    return bool(np.isfinite(low) and np.isfinite(high))
