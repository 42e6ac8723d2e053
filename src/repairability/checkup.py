"""doctor: what can be pruned in a network, what cannot and why, and what each recipe would do there and cost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from repairability._torch import copy_of, evaluating, is_lazy, unwrapped
from repairability.calibration import COUNT
from repairability.curves import OUTPUT
from repairability.diagnostics.output import PASSES
from repairability.errors import InputError
from repairability.network.batches import Batch, Forward, described, plain, run, sample_count, taken, to_model
from repairability.network.candidates import candidates, parameter_count, refittable_layers
from repairability.network.discover import AUTO_TYPES, SKIPPED, chosen_kinds, prunable_layers
from repairability.network.layers import Layer, Layers
from repairability.network.norms import norms_of
from repairability.network.outputs import is_logits, picked
from repairability.network.trace import Trace, trace
from repairability.network.use import Use, observed
from repairability.pruning import RECIPES, Recipe, RecipeLike, get_recipe
from repairability.repairs.walk import HELD, IMAGES
from repairability.scores import Alternating, Score
from repairability.scores.alternating import THOROUGH
from repairability.tables import Table, Value, percent

_DIAGNOSIS = 5.0
"""What a diagnosis costs, in forward passes of its samples; measured at 4 to 8 (`benchmarks/diagnose.py`)."""

_TRIALS = 1.0 + PASSES
"""What the trials at the network's output cost beside the fits, in passes of the samples: the dense outputs, and the
trials themselves.
"""

_SOLVING = 0.25
"""Share of a plain float32 product's speed that the sums and the surgeon of a refit reach, in all; measured on ResNet20
and ResNet18 (`benchmarks/reconstruct.py`), so an estimate is good to a factor of three.
"""

_SEARCH, _SHORT_SEARCH = 130, 60
"""What a search for a filter's weights and their refit take, in products with its K x K Gram; the second for filters
with many inputs. Half of their number: they come nearer to a plain product's speed than the sums.
"""


@dataclass(frozen=True)
class ParameterRow:
    """One parameter (or one of its matrices): what becomes of it."""

    name: str
    kind: str  # of layer; empty where it is none
    shape: tuple[int, ...]
    share: float  # of all parameters
    pruned: bool
    why: str  # it is not pruned
    calls: int  # products with it in one pass
    norm: str  # the BatchNorm that takes the layer's output


@dataclass(frozen=True)
class RecipeRow:
    """A recipe on this network: what its repair does, and roughly what it takes."""

    recipe: str
    rule: str
    score: str
    repair: str
    does: tuple[str, ...]
    seconds: float
    megabytes: float


@dataclass(frozen=True, eq=False)
class Checkup(Value):
    """What the doctor found; prints as tables."""

    model: str
    batch: str
    output: str
    parameters: int
    prunable: int
    layers: int
    rows: tuple[ParameterRow, ...]
    recipes: tuple[RecipeRow, ...]
    notes: tuple[str, ...]
    seconds: float  # of one forward pass of the batch

    @property
    def coverage(self) -> float:
        """The share of all parameters that may be pruned."""
        return self.prunable / max(1, self.parameters)

    def table(self) -> Table:
        rows = [
            (
                *(x.name, x.kind, "x".join(map(str, x.shape)), percent(x.share)),
                "yes" if x.pruned else "",
                x.why,
                f"{x.calls}" if x.calls else "",
                x.norm,
            )
            for x in self.rows
        ]
        caption = (
            f"{self.model}: {self.layers} layers, {self.prunable:,} of {self.parameters:,} parameters may be pruned "
            f"({percent(self.coverage)}); a batch of {self.batch} takes {self.seconds:.2f} s; {self.output}"
        )
        caption += "".join(f"\nnote: {note}" for note in self.notes)
        columns = ("parameter", "kind", "shape", "share", "pruned", "why not", "calls", "norm behind")
        return Table(columns, rows, caption=caption)

    def recipes_table(self) -> Table:
        rows = [
            (x.recipe, x.rule, x.score, x.repair, "; ".join(x.does), f"{x.seconds:,.0f}", f"{x.megabytes:,.0f}")
            for x in self.recipes
        ]
        caption = f"seconds and megabytes are estimates, good to a factor of three, for {COUNT} to {IMAGES:,} samples"
        return Table(("recipe", "rule", "score", "repair", "does here", "seconds", "MB"), rows, caption=caption)

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.recipes_table()}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "coverage": self.coverage}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Checkup:
        known = {name: value for name, value in data.items() if name != "coverage"}
        rows = tuple(ParameterRow(**{**row, "shape": tuple(row["shape"])}) for row in data["rows"])
        recipes = tuple(RecipeRow(**{**row, "does": tuple(row["does"])}) for row in data["recipes"])
        return cls(**{**known, "rows": rows, "recipes": recipes, "notes": tuple(data["notes"])})


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
    norms = norms_of(network)
    beside = f"; {norms.others}" if norms.others else ""
    notes.append(f"normalisation: {norms.learned} BatchNorm with running statistics{beside}")
    costs = _Costs(network, layers, given, forward, seconds)
    estimates = tuple(_estimate(network, layers, recipe, costs) for recipe in ways) if layers else ()
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


class _Costs:
    """What estimates are made of: the seconds of a pass of one sample, the speed of a product, the sizes of layers."""

    def __init__(
        self, network: nn.Module, layers: Layers, batch: Batch, forward: Forward | None, seconds: float
    ) -> None:
        self.samples = sample_count(batch)
        self.per_sample = seconds / max(1, self.samples)
        self.bytes = sum(p.nbytes for p in network.parameters() if not is_lazy(p)) + sum(
            b.nbytes for b in network.buffers()
        )
        every = refittable_layers(network)
        self.way = trace(network, every, batch, forward=forward, needed=()) if every else None
        self.every = every.subset(self.way.order) if self.way else every
        self.speed = _product_speed()

    def refit(self, images: int, score: Score, budget: float | None) -> tuple[float, float]:
        """Seconds and bytes of least squares on every layer, the choice of its weights included."""
        operations, held, widest = 0.0, 0, 0.0
        for layer in self.every:
            assert self.way is not None
            shape, geometry = self.way.inputs[layer.name], self.way.geometries[layer.name]
            positions = max(1, torch.Size(geometry.out_size(shape[2:])).numel()) * images
            inputs = layer.total // layer.outputs
            columns = positions if budget is None else min(positions, budget * inputs)  # those that are drawn
            operations += layer.groups * columns * inputs**2  # x x', half of it
            if isinstance(score, Alternating):
                steps = _SHORT_SEARCH if inputs > THOROUGH else _SEARCH
                operations += steps * layer.outputs * inputs**2
            else:
                operations += layer.outputs * min(inputs, 768) ** 3  # the removal of one weight after the other
            here = 4 * (torch.Size(shape[1:]).numel() * images + layer.outputs * positions)
            drawn = 0.0 if budget is None else 4 * layer.groups * inputs * columns
            held, widest = max(held, here), max(widest, 3 * 8 * layer.groups * inputs**2 + drawn)
        return operations / (_SOLVING * self.speed), min(4.0 * held, HELD) + widest


def _product_speed() -> float:
    """Multiply-adds a second of a float32 product."""
    a = torch.ones(512, 512)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return 512**3 / max(best, 1e-9)


def _estimate(network: nn.Module, layers: Layers, recipe: Recipe, costs: _Costs) -> RecipeRow:
    (rule, options), score, repair = recipe.parts()
    seconds, held = 0.0, 2.0 * costs.bytes
    measured = rule.works_on_curves(options)
    if measured and repair.fit is None:
        seconds += _DIAGNOSIS * COUNT * costs.per_sample
    if repair.fit is not None or score.looks_at_inputs:
        images, budget = (IMAGES, None) if repair.fit is None else (repair.fit.images, repair.fit.budget)
        spent, more = costs.refit(images, score, budget)
        rounds = 2 if measured and repair.fit is not None else 1  # curves of a refit: the same least squares once more
        seconds, held = seconds + rounds * (spent + 4 * images * costs.per_sample), held + more
    elif norms_of(network).learned:
        seconds += 20 * 128 * costs.per_sample
    if OUTPUT in rule.measures(options):
        seconds += _TRIALS * (IMAGES if repair.fit is None else repair.fit.images) * costs.per_sample
    does = repair.notes(copy_of(network), layers)
    return RecipeRow(recipe.name, rule.name, score.name, repair.name, does, seconds, held / 2**20)
