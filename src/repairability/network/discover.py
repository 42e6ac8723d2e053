"""Which weights may be pruned: all that a product could use, which of them are chosen, and why others are not."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as trees

from repairability._torch import evaluating, masked_names, unwrapped
from repairability.errors import InputError, unknown
from repairability.network.batches import PROBE, Batch, Forward, Samples, plain, run, sample_count, to_model
from repairability.network.calls import Call, Watching
from repairability.network.kinds import CONVOLUTIONS, KINDS, LINEAR, TYPES, kind_of
from repairability.network.layers import NOT_ORDINARY, Layer, Layers, matching, part_of, tensor_of
from repairability.tables import percent

FIRST_CONV = "@first"
"""In `skip`: the first convolution in definition order (the stem), whatever its name."""

LAST_LINEAR = "@last"
"""In `skip`: the last linear layer in definition order (the classifier), whatever its name."""

SKIPPED = (FIRST_CONV, LAST_LINEAR)
"""What stays dense, unless the user says otherwise."""

AUTO_TYPES = "auto"
"""In place of `types`: convolutions, and linear layers too where they hold most of the weights."""

PROJECTIONS = ("*downsample*", "*shortcut*", "*skip*")
"""Names by which shortcut (projection) layers are known, unless the user says otherwise."""

_SHARED = "its weight is also held by"
_NAN = "holds nan or inf"


@dataclass(frozen=True)
class Candidate:
    """A layer that could be pruned, or the sentence why it is not."""

    layer: Layer
    why_not: str = ""

    @property
    def shared(self) -> bool:
        return self.why_not.startswith(_SHARED)


def prunable_layers(
    model: nn.Module,
    *,
    types: str | Sequence[str] = AUTO_TYPES,
    skip: Sequence[str] = SKIPPED,
    only: Sequence[str] = ("*",),
    projections: Sequence[str] = PROJECTIONS,
    batch: Batch = None,
    forward: Forward | None = None,
) -> Layers:
    """The layers of `model` that may be pruned, in definition order.

    `types` are "conv" (= "conv2d"), "conv1d", "conv3d", "conv_transpose2d" ..., "linear"; "auto": all convolutions, and
    linear layers too where they hold most of the weights. `skip` and `only` are globs on dotted names; in `skip`,
    "@first" stands for the first convolution and "@last" for the last linear layer, so `skip=("@first", "layer4.*")`
    leaves the classifier in and `skip=()` skips nothing. `projections` are the globs that shortcut layers are known by.

    A module reachable under two names counts once, under the first. A weight that several modules hold (an embedding
    and the head) is left out with a notice, unless `only` names it. With a `batch` the model is run once: layers that
    it never reaches, or whose weight is not what is multiplied, are left out with a notice, and weights that no module
    of a known class owns (batches of experts' matrices) are found.
    """
    network = unwrapped(model)
    _check_words(types, skip, only, projections)
    use = None if batch is None else observed(network, plain(batch), forward)
    every = [*candidates(network), *(_bare_candidates(network, use) if use else ())]
    kinds = _kinds(every, types)
    known = {x.layer.name: x for x in every if x.layer.kind in kinds}
    if not known:
        asked = "convolutional or linear" if types == AUTO_TYPES else ", ".join(types)
        raise InputError(f"{type(network).__name__} has no layer of type {asked}: nothing to prune")
    skipped = {name for pattern in skip for name in _skipped(every, known, pattern)}
    chosen = {name for pattern in only for name in matching(known, pattern)} - skipped
    left_out: dict[str, str] = {}
    layers: list[Layer] = []
    for name in (name for name in known if name in chosen):
        why = _why_not(known[name], only, types) or (use.why_not(known[name].layer) if use else "")
        if why:
            left_out[name] = why
        elif all(known[name].layer.weight is not layer.weight for layer in layers):  # of two names for one, the first
            layers.append(_ranked(known[name].layer, projections))
    if not layers:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise InputError(
            f"nothing is left to prune in {type(network).__name__}: types={_words(types)}, only={tuple(only)} and "
            f"skip={tuple(skip)} leave none of {', '.join(known)}" + (f" ({reasons})" if reasons else "")
        )
    total = sum(parameter.numel() for parameter in network.parameters() if not _is_lazy(parameter))
    uncounted = {*left_out, *([_last(every)] if LAST_LINEAR in skip else [])}
    weights = {id(x.layer.weight): x.layer.total for name, x in known.items() if name not in uncounted}
    n_all = sum(weights.values())
    prunable = Layers(layers, n_all, total, left_out)
    _mention(network, prunable, every, skip)
    return prunable


def layers_named(
    model: nn.Module | Layers, names: Iterable[str], *, batch: Batch = None, forward: Forward | None = None
) -> Layers:
    """The layers of `model` under exactly these names, in definition order; no other layer is looked at. A weight that
    no module of a known kind owns is taken for [in, out], unless a `batch` shows how it is multiplied by.
    """
    if isinstance(model, Layers):
        return model.subset([model[name].name for name in names])
    network, wanted = unwrapped(model), set(names)
    known = {x.layer.name: x for x in candidates(network)}
    if batch is not None and wanted - set(known):
        known |= {x.layer.name: x for x in _bare_candidates(network, observed(network, batch, forward))}
    for name in wanted - set(known):
        known[name] = Candidate(_by_place(network, name, known))
    layers = []
    for name in (name for name in known if name in wanted):
        if known[name].why_not and not known[name].shared:
            raise InputError(f"the weight of layer {name!r} {known[name].why_not}")
        layers.append(_ranked(known[name].layer, PROJECTIONS))
    return Layers(layers, sum(layer.total for layer in layers))


def refittable_layers(model: nn.Module, *, shared: bool = False) -> Layers:
    """Every layer of a known kind whose weight is an ordinary, finite parameter of its own: what a refit of everything
    may touch. One that is not (weight-normed, lazy, nan, `shared`) is nobody's choice here, so it is left out.
    """
    layers: dict[object, Layer] = {}
    for x in candidates(unwrapped(model)):
        if (not x.why_not or (shared and x.shared)) and _is_finite(x.layer.weight):
            layers.setdefault(id(x.layer.weight), x.layer)  # of several names for one weight, the first
    return Layers(layers.values(), sum(layer.total for layer in layers.values()))


def candidates(network: nn.Module) -> list[Candidate]:
    """Every weight of a module of a known kind, each under its first name, in definition order."""
    found: list[Candidate] = []
    holders = _holders(network)
    for name, module in network.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            found += [Candidate(x, _held_by(holders, network, x, name)) for x in _projections(name, module)]
        kind = kind_of(module)
        if kind is None:
            continue
        groups = int(getattr(module, "groups", 1))
        place = f"{name}.weight" if name else "weight"
        try:
            weight = tensor_of(network, place)
        except InputError:
            found.append(Candidate(Layer(name, kind.name, _computed(module), groups=groups), NOT_ORDINARY))
            continue
        layer = Layer(name, kind.name, weight, groups=groups)
        strange = NOT_ORDINARY if type(weight) not in (nn.Parameter, Tensor) or weight.is_complex() else ""
        found.append(Candidate(layer, strange or _held_by(holders, network, layer, name)))
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


def _holders(network: nn.Module) -> dict[int, list[str]]:
    """id of a parameter -> the modules that hold it, each once, under its first name."""
    holders: dict[int, list[str]] = {}
    for name, module in network.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                holders.setdefault(id(parameter), []).append(name)
    return holders


def _held_by(holders: dict[int, list[str]], network: nn.Module, layer: Layer, name: str) -> str:
    others = [other for other in holders.get(id(tensor_of(network, layer.place)), ()) if other != name]
    return f"{_SHARED} {', '.join(others)}" if others else ""


def _computed(module: nn.Module) -> Tensor:
    """A weight that is no parameter, for its size alone: to compute it could change the module (spectral norm does)."""
    known = [
        vars(module).get("weight"),
        *(p for n, p in module.named_parameters() if n.startswith("parametrizations.weight")),
    ]
    tensors = [x.detach() for x in known if isinstance(x, Tensor) and not _is_lazy(x)]
    return max(tensors, key=torch.numel, default=torch.empty(0))


def _by_place(network: nn.Module, name: str, known: Iterable[str]) -> Layer:
    """A layer that only a run finds, by its name: a parameter, or one matrix of it."""
    parameters, (place, _, part) = dict(network.named_parameters()), name.rpartition(".")
    whole = parameters.get(name)
    if whole is not None and whole.dim() == 2:
        return Layer(name, "matrix", whole, parameter=name)
    batch = parameters.get(place)
    if batch is not None and batch.dim() == 3 and part.isdecimal() and int(part) < len(batch):
        return Layer(name, "matrix", part_of(batch, int(part)), parameter=place, part=int(part))
    raise unknown("layer", name, known)


def _ranked(layer: Layer, projections: Sequence[str]) -> Layer:
    """The layer, if its weights can be ranked; whether it is a projection, by its name."""
    if not _is_finite(layer.weight):
        raise InputError(f"the weight of layer {layer.name!r} {_NAN}; such weights cannot be ranked")
    return replace(layer, projection=any(fnmatchcase(layer.name, pattern) for pattern in projections))


def _why_not(candidate: Candidate, only: Sequence[str], types: str | Sequence[str]) -> str:
    """Why a chosen layer is left out; what was named, or whose type was, is refused instead where it cannot be."""
    if candidate.shared:
        return "" if candidate.layer.name in only else candidate.why_not
    if candidate.why_not and (types != AUTO_TYPES or candidate.layer.name in only):
        raise InputError(f"the weight of layer {candidate.layer.name!r} {candidate.why_not}; skip it")
    return candidate.why_not


def chosen_kinds(network: nn.Module, types: str | Sequence[str]) -> set[str]:
    """The kinds of layers that `types` means on this network."""
    _check_words(types, (), (), ())
    return _kinds(candidates(network), types)


def _kinds(every: Sequence[Candidate], types: str | Sequence[str]) -> set[str]:
    if types != AUTO_TYPES:
        return {kind for name in types for kind in TYPES[name]}
    last = _last(every)
    free = [x.layer for x in every if not x.why_not and x.layer.name != last]
    linear = sum(layer.total for layer in free if layer.kind in LINEAR)
    mostly = 2 * linear > sum(layer.total for layer in free) or all(x.layer.kind in LINEAR for x in every)
    return {*CONVOLUTIONS, *(LINEAR if mostly else ())}


def _skipped(every: Sequence[Candidate], known: Iterable[str], pattern: str) -> list[str]:
    if pattern == FIRST_CONV:
        return [next((x.layer.name for x in every if _slides(x.layer)), "")]
    return [_last(every)] if pattern == LAST_LINEAR else matching(known, pattern)


def _slides(layer: Layer) -> bool:
    kind = KINDS[layer.kind]
    return kind.axes > 0 and not kind.transposed


def _last(every: Sequence[Candidate]) -> str:
    """The last linear module's layer: the classifier."""
    own = (x.layer for x in reversed(every) if not x.layer.parameter)
    return next((layer.name for layer in own if layer.kind in LINEAR), "")


def _mention(network: nn.Module, layers: Layers, every: Sequence[Candidate], skip: Sequence[str]) -> None:
    """Notices: layers that were left out, masks that were taken over, and a small share of prunable parameters."""
    name = type(network).__name__
    for layer, why in layers.left_out.items():
        warnings.warn(f"layer {layer!r} of {name} is not pruned: {why}", stacklevel=3)
    masked = masked_names(network)
    if masked:
        listed = ", ".join(masked[:3]) + (" ..." if len(masked) > 3 else "")
        warnings.warn(f"masks of torch.nn.utils.prune on {listed} are taken over as zeros", stacklevel=3)
    coverage = layers.coverage
    if coverage is None or coverage >= 0.5:
        return
    others = [x.layer for x in every if x.layer.name not in layers.names and x.layer.kind in LINEAR and not x.why_not]
    more = sum(layer.total for layer in others if layer.name != _last(every) or LAST_LINEAR not in skip)
    hint = ""
    if more and not any(layer.kind in LINEAR for layer in layers):
        share = percent((layers.total + more) / max(1, layers.parameters or 1))
        hint = f'; types=("conv", "linear") would make it {share}'
    shared = [layer for layer, why in layers.left_out.items() if why.startswith(_SHARED)]
    if not hint and shared:
        hint = f"; {', '.join(shared[:3])} would add to it, if `only` named it"
    warnings.warn(f"only {percent(coverage)} of the parameters of {name} may be pruned{hint}", stacklevel=3)


def _check_words(types: str | Sequence[str], *globs: Sequence[str]) -> None:
    for name, given in zip(("skip", "only", "projections"), globs, strict=True):
        if isinstance(given, str):
            raise InputError(f"{name} takes a sequence of names, not the string {given!r}; write ({given!r},)")
    if types == AUTO_TYPES:
        return
    if isinstance(types, str):
        raise InputError(
            f"types takes {AUTO_TYPES!r} or a sequence of names, not the string {types!r}; write ({types!r},)"
        )
    for kind in types:
        if kind not in TYPES:
            raise unknown("layer type", kind, TYPES)


def _words(types: str | Sequence[str]) -> str:
    return repr(types) if isinstance(types, str) else repr(tuple(types))


def _is_lazy(parameter: Tensor) -> bool:
    return isinstance(parameter, (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer))


def _is_finite(weight: Tensor) -> bool:
    if weight.is_meta or weight.numel() == 0:
        return True
    low, high = (float(x) for x in torch.aminmax(weight.detach()))  # nan spreads through min and max
    return math.isfinite(low) and math.isfinite(high)


@dataclass
class Use:
    """How a forward pass uses the parameters: by which functions each is touched, how often each layer is multiplied
    by, and which weights are that no module of a known kind owns.
    """

    touched: dict[str, set[str]] = field(default_factory=dict)  # parameter -> functions
    calls: dict[str, int] = field(default_factory=dict)  # layer -> products
    bare: dict[str, Layer] = field(default_factory=dict)

    def why_not(self, layer: Layer) -> str:
        """Why a layer cannot be pruned, by what was seen of it."""
        if "embedding" in self.touched.get(layer.place, ()):
            return f"{_SHARED} an embedding"
        if self.calls.get(layer.name):
            return ""
        by = sorted(self.touched.get(layer.place, set()) - _LOOKS)
        if by:
            return f"the model does not multiply by it as it is, but uses it in {', '.join(by[:3])}"
        return "the model never reaches it on these samples"


_LOOKS = {
    *("__get__", "__set__", "__getitem__", "size", "dim", "stride", "numel", "type", "data_ptr", "is_contiguous"),
    *("t", "transpose", "reshape", "view", "to", "chunk", "split", "unbind", "requires_grad_"),
}
"""Functions that only look at a parameter, or at a view of it."""


def observed(network: nn.Module, batch: Batch, forward: Forward | None = None) -> Use:
    """Run a batch once and see how each parameter is used: a few samples, and the whole batch where they leave a
    weight unused.
    """
    batch = to_model(batch, network)
    few = next(Samples((batch,)).split(PROBE))
    use = _observed(network, few, forward)
    if few is not batch and any(use.why_not(x.layer) for x in candidates(network) if not x.why_not):
        use = _observed(network, batch, forward)
    return use


def _observed(model: nn.Module, batch: Batch, forward: Forward | None) -> Use:
    use = Use()
    with evaluating(model) as network:
        parameters = {name: p for name, p in network.named_parameters() if p.numel() and not p.is_meta}
        owned = [x.layer for x in candidates(network)]
        free = [x for name, p in parameters.items() if all(y.place != name for y in owned) for x in _bare(name, p)]
        places = {p.data_ptr(): name for name, p in parameters.items()}

        def handle(call: Call) -> Tensor:
            name = call.layer.name
            use.calls[name] = use.calls.get(name, 0) + 1
            if call.layer in free:
                use.bare[name] = call.layer
            return call.compute()

        class Touching(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
                for leaf in trees.tree_leaves((args, kwargs)):
                    if isinstance(leaf, Tensor) and leaf.layout == torch.strided and leaf.data_ptr() in places:
                        name = getattr(func, "__name__", "")
                        use.touched.setdefault(places[leaf.data_ptr()], set()).add(name)
                return func(*args, **(kwargs or {}))

        with Touching(), Watching(network, [*owned, *free], handle, samples=sample_count(batch)):
            run(network, batch, forward)
    return use


def _bare(name: str, parameter: Tensor) -> Iterator[Layer]:
    """A parameter that no module of a known kind owns, as the layers it may turn out to be: a matrix or a batch of
    matrices, [in, out] or [out, in].
    """
    if not parameter.is_floating_point() or parameter.dim() not in (2, 3):
        return
    parts: Iterable[int | None] = [None] if parameter.dim() == 2 else range(len(parameter))
    for part, kind in itertools.product(parts, LINEAR):
        own = name if part is None else f"{name}.{part}"
        yield Layer(own, kind, part_of(parameter, part), parameter=name, part=part)


def _bare_candidates(network: nn.Module, use: Use) -> list[Candidate]:
    """What a run found: layers of `network` itself, in definition order."""
    holders, order = _holders(network), list(dict(network.named_parameters()))
    found = sorted(use.bare.values(), key=lambda x: (order.index(x.place), x.part or 0))
    layers = [replace(x, weight=part_of(tensor_of(network, x.place), x.part)) for x in found]
    return [Candidate(x, _held_by(holders, network, x, x.place.rpartition(".")[0])) for x in layers]
