"""Which weights may be pruned: all that a product could use, which of them are chosen, and why others are not."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import nn

from repairability._torch import is_finite, masked_names, unwrapped
from repairability.errors import InputError, unknown
from repairability.network.batches import Batch, Forward, plain
from repairability.network.candidates import ITS_WEIGHT, SHARED, Candidate, candidates, parameter_count
from repairability.network.kinds import CONVOLUTIONS, KINDS, LINEAR, TYPES
from repairability.network.layers import Layer, Layers, matching, part_of
from repairability.network.use import Use, bare_candidates, observed
from repairability.tables import percent

FIRST_CONV = "@first"
"""In `skip`: the first convolution (the stem), whatever its name: of a run, else in definition order."""

LAST_LINEAR = "@last"
"""In `skip`: the last linear layer (the classifier), whatever its name: of a run, else in definition order."""

SKIPPED = (FIRST_CONV, LAST_LINEAR)
"""What stays dense, unless the user says otherwise."""

AUTO_TYPES = "auto"
"""In place of `types`: convolutions, and linear layers too where they hold most of the weights."""

PROJECTIONS = ("*downsample*", "*shortcut*", "*skip*")
"""Names by which shortcut (projection) layers are known, unless the user says otherwise."""

_NAN = "holds nan or inf"


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
    it never reaches, or whose weight is not what is multiplied, are left out with a notice, weights that no module of a
    known class owns (batches of experts' matrices) are found, and first and last are by the order of that run.
    """
    network = unwrapped(model)
    _check_words(types, skip, only, projections)
    use = None if batch is None else observed(network, plain(batch), forward)
    every = [*candidates(network), *(bare_candidates(network, use) if use else ())]
    ends = {FIRST_CONV: _first(every, use), LAST_LINEAR: _last(every, use)}
    kinds = _kinds(every, types, ends[LAST_LINEAR])
    known = {x.layer.name: x for x in every if x.layer.kind in kinds}
    if not known:
        asked = "convolutional or linear" if types == AUTO_TYPES else ", ".join(types)
        raise InputError(f"{type(network).__name__} has no layer of type {asked}: nothing to prune")
    skipped = {name for pattern in skip for name in _skipped(ends, known, pattern)}
    chosen = {name for pattern in only for name in matching(known, pattern)} - skipped
    left_out: dict[str, str] = {}
    layers: list[Layer] = []
    for name in (name for name in known if name in chosen):
        why = _why_not(known[name], only, types) or (use.why_not(known[name].layer) if use else "")
        if why.startswith(SHARED) and name in only:
            why = ""
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
    uncounted = {*left_out, *([ends[LAST_LINEAR]] if LAST_LINEAR in skip else [])}
    weights = {id(x.layer.weight): x.layer.total for name, x in known.items() if name not in uncounted}
    n_all = sum(weights.values())
    prunable = Layers(layers, n_all, parameter_count(network), left_out)
    _mention(network, prunable, every, ends[LAST_LINEAR] if LAST_LINEAR in skip else "")
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
        known |= {x.layer.name: x for x in bare_candidates(network, observed(network, batch, forward))}
    places = list(dict(network.named_parameters()))
    bare = [_by_place(network, name, known) for name in wanted - set(known)]
    for layer in sorted(bare, key=lambda x: (places.index(x.place), x.part or 0)):
        known[layer.name] = Candidate(layer)
    layers = []
    for name in (name for name in known if name in wanted):
        if known[name].why_not and not known[name].shared:
            raise InputError(_refusal(known[name]))
        layers.append(_ranked(known[name].layer, PROJECTIONS))
    return Layers(layers, sum(layer.total for layer in layers))


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
    if not is_finite(layer.weight):
        raise InputError(f"the weight of layer {layer.name!r} {_NAN}; such weights cannot be ranked")
    return replace(layer, projection=any(fnmatchcase(layer.name, pattern) for pattern in projections))


def _why_not(candidate: Candidate, only: Sequence[str], types: str | Sequence[str]) -> str:
    """Why a chosen layer is left out; what was named, or whose type was, is refused instead where it cannot be."""
    if candidate.shared:
        return "" if candidate.layer.name in only else candidate.why_not
    if candidate.why_not and (types != AUTO_TYPES or candidate.layer.name in only):
        raise InputError(f"{_refusal(candidate)}; skip it")
    return candidate.why_not


def _refusal(candidate: Candidate) -> str:
    return f"the weight of layer {candidate.layer.name!r} {candidate.why_not.removeprefix(ITS_WEIGHT)}"


def chosen_kinds(network: nn.Module, types: str | Sequence[str]) -> set[str]:
    """The kinds of layers that `types` means on this network."""
    _check_words(types, (), (), ())
    every = candidates(network)
    return _kinds(every, types, _last(every, None))


def _kinds(every: Sequence[Candidate], types: str | Sequence[str], last: str) -> set[str]:
    if types != AUTO_TYPES:
        return {kind for name in types for kind in TYPES[name]}
    free = [x.layer for x in every if not x.why_not and x.layer.name != last]
    linear = sum(layer.total for layer in free if layer.kind in LINEAR)
    mostly = 2 * linear > sum(layer.total for layer in free) or all(x.layer.kind in LINEAR for x in every)
    return {*CONVOLUTIONS, *(LINEAR if mostly else ())}


def _skipped(ends: Mapping[str, str], known: Iterable[str], pattern: str) -> list[str]:
    return [ends[pattern]] if pattern in ends else matching(known, pattern)


def _first(every: Sequence[Candidate], use: Use | None) -> str:
    """The first convolution: the stem."""
    return _end([x for x in every if _slides(x.layer)], 0, use)


def _last(every: Sequence[Candidate], use: Use | None) -> str:
    """The last linear module's layer: the classifier."""
    return _end([x for x in every if x.layer.kind in LINEAR and not x.layer.parameter], -1, use)


def _slides(layer: Layer) -> bool:
    kind = KINDS[layer.kind]
    return kind.axes > 0 and not kind.transposed


def _end(some: Sequence[Candidate], end: int, use: Use | None) -> str:
    """The first or the last in the order in which a run multiplied by them. By definition without a run, or where that
    one is used in another way (a stem that standardises its weight, a head that normalises it): then a run does not
    tell its place.
    """
    if not some:
        return ""
    defined = some[end]
    if use is None or _used_otherwise(defined, use):
        return defined.layer.name
    places = {name: place for place, name in enumerate(use.calls)}
    ran = sorted((x for x in some if x.layer.name in places), key=lambda x: places[x.layer.name])
    return (ran or some)[end].layer.name


def _used_otherwise(candidate: Candidate, use: Use) -> bool:
    computed = bool(candidate.why_not) and not candidate.shared
    return computed or (not use.calls.get(candidate.layer.name) and use.transforms(candidate.layer))


def _mention(network: nn.Module, layers: Layers, every: Sequence[Candidate], head: str) -> None:
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
    more = sum(layer.total for layer in others if layer.name != head)
    hint = ""
    if more and not any(layer.kind in LINEAR for layer in layers):
        share = percent((layers.total + more) / max(1, layers.parameters or 1))
        hint = f'; types=("conv", "linear") would make it {share}'
    shared = [layer for layer, why in layers.left_out.items() if why.startswith(SHARED)]
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
