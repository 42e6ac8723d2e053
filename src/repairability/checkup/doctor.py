"""doctor: one batch goes in, a table of every parameter comes out."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

from torch import nn

from repairability._torch import broken_tensors, evaluating, is_lazy, unwrapped
from repairability.checkup.estimates import Costs, estimate
from repairability.checkup.findings import Checkup, ParameterRow
from repairability.errors import InputError
from repairability.network.batches import Batch, Forward, described, plain, run, taken, to_model
from repairability.network.candidates import candidates, parameter_count
from repairability.network.discover import AUTO_TYPES, SKIPPED, chosen_kinds, prunable_layers
from repairability.network.layers import Layer, Layers
from repairability.network.norms import norms_of
from repairability.network.outputs import is_logits, picked
from repairability.network.trace import Trace, trace
from repairability.network.use import Use, observed
from repairability.pruning import RECIPES, RecipeLike, get_recipe


def doctor(
    model: nn.Module,
    batch: Batch,
    *,
    types: str | Sequence[str] = AUTO_TYPES,
    skip: Sequence[str] = SKIPPED,
    only: Sequence[str] = ("*",),
    recipes: Sequence[RecipeLike] = tuple(RECIPES),
    forward: Forward | None = None,
) -> Checkup:
    """The first thing to run on a strange model: one batch as your loader yields it goes in, a table of every parameter
    comes out. The model is only read; nothing is pruned.

    `types`, `skip`, `only` choose layers as in `prunable_layers`, `forward` as in `prune`. `recipes`: those whose cost
    is estimated, by name or as `prune` takes them.
    """
    network, ways = unwrapped(model), [get_recipe(recipe) for recipe in recipes]
    kinds = chosen_kinds(network, types)
    given = to_model(plain(batch) if forward else taken(network, plain(batch)), network)
    seconds, output = _dry_run(network, given, forward)
    use = observed(network, given, forward)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layers = _chosen(network, given, forward, types, skip, only)
    notes = [str(x.message) for x in caught if not str(x.message).startswith("layer ")]
    way = trace(network, layers, given, forward=forward) if layers else None
    rows = tuple(_rows(network, layers, use, way, kinds))
    notes += [f"{name} holds nan or inf: no verb takes such a network" for name in broken_tensors(network)]
    norms = norms_of(network)
    beside = f"; {norms.others}" if norms.others else ""
    notes.append(f"normalisation: {norms.learned} BatchNorm with running statistics{beside}")
    costs = Costs(network, given, forward, seconds)
    estimates = tuple(estimate(network, layers, recipe, costs) for recipe in ways) if layers else ()
    return Checkup(
        type(network).__name__,
        described(given),
        output,
        parameter_count(network),
        layers.total,
        len(layers),
        rows,
        estimates,
        tuple(notes),
        seconds,
    )


def _dry_run(network: nn.Module, batch: Batch, forward: Forward | None) -> tuple[float, str]:
    """Seconds of a pass, and how its output would be compared."""
    with evaluating(network) as shadow:
        run(shadow, batch, forward)
        start = time.perf_counter()
        raw = run(shadow, batch, forward)
        spent = time.perf_counter() - start
    try:
        tensor = picked(raw)
    except InputError:
        return spent, f"its output is a {type(raw).__name__}: output= must pick what is compared"
    how = "KL" if is_logits(raw, None, tensor) else "relative error"
    return spent, f"its output {tuple(tensor.shape)} would be compared by {how}"


def _chosen(
    network: nn.Module,
    batch: Batch,
    forward: Forward | None,
    types: str | Sequence[str],
    skip: Sequence[str],
    only: Sequence[str],
) -> Layers:
    """The layers that would be pruned; none where nothing can be, which is an answer too."""
    try:
        return prunable_layers(network, types=types, skip=skip, only=only, batch=batch, forward=forward)
    except InputError as error:
        warnings.warn(str(error), stacklevel=2)
        return Layers((), 0)


def _rows(network: nn.Module, layers: Layers, use: Use, way: Trace | None, kinds: set[str]) -> list[ParameterRow]:
    """Every parameter in definition order, its parts below it where it has some."""
    total = max(1, parameter_count(network))
    by_place: dict[str, list[tuple[Layer, str]]] = {}
    for candidate in candidates(network):
        by_place.setdefault(candidate.layer.place, []).append((candidate.layer, candidate.why_not))
    for layer in use.bare.values():
        by_place.setdefault(layer.place, []).append((layer, ""))
    rows = []
    for place, parameter in ((x, p) for x, p in network.named_parameters() if not is_lazy(p)):
        for layer, reason in by_place.get(place, []):
            pruned = layer.name in layers.names
            other = "skipped" if layer.kind in kinds else "of a type that is not chosen"
            why = "" if pruned else reason or layers.left_out.get(layer.name) or use.why_not(layer) or other
            norm = "" if way is None else way.norms.get(layer.name, "")
            calls = use.calls.get(layer.name, 0)
            share = layer.total / total
            rows.append(ParameterRow(layer.name, layer.kind, layer.shape, share, pruned, why, calls, norm))
        if place not in by_place:
            why = _no_layer(network, place)
            rows.append(ParameterRow(place, "", tuple(parameter.shape), parameter.numel() / total, False, why, 0, ""))
    return rows


def _no_layer(network: nn.Module, place: str) -> str:
    """Why a parameter is no layer's weight."""
    owner, _, name = place.rpartition(".")
    module = network.get_submodule(owner)
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return "a recurrent weight, multiplied by step after step inside one function: not pruned"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "an embedding is looked up, not multiplied by"
    if "Norm" in type(module).__name__:
        return "a normalisation's"
    if name == "bias" or module.get_parameter(name).dim() < 2:
        return "a vector, not a matrix"
    return f"no product with it was seen ({type(module).__name__})"
