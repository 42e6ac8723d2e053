"""Slow, obvious versions of what the package does fast. Imports nothing of it: a second opinion."""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor, nn

Weights = Sequence[Sequence[float]]


def pruned_count(total: int, sparsity: float) -> int:
    """Round half to even, on the floating-point product."""
    product = Fraction(sparsity * total)
    low = math.floor(product)
    if product - low == Fraction(1, 2):
        return low if low % 2 == 0 else low + 1
    return low if product - low < Fraction(1, 2) else low + 1


def mask(weights: Sequence[float], count: int) -> list[bool]:
    """True where a weight stays: the `count` first in the order (|w|, index) go."""
    order = sorted(range(len(weights)), key=lambda i: (abs(weights[i]), i))
    gone = set(order[:count])
    return [i not in gone for i in range(len(weights))]


def global_counts(layers: Weights, count: int) -> list[int]:
    """How many weights each layer loses when the `count` smallest of all go, in the order (|w|, layer, index)."""
    order = sorted((abs(w), layer, i) for layer, weights in enumerate(layers) for i, w in enumerate(weights))
    return [sum(1 for _, layer, _ in order[:count] if layer == x) for x in range(len(layers))]


def lamp_counts(layers: Weights, count: int) -> list[int]:
    """The same for the order (LAMP score, layer, rank in the layer)."""
    scored = []
    for layer, weights in enumerate(layers):
        squares = [w * w for w in sorted(abs(w) for w in weights)]
        for rank, square in enumerate(squares):
            below = math.fsum(squares[rank:])
            scored.append((square / below if below else 0.0, layer, rank))
    return [sum(1 for _, layer, _ in sorted(scored)[:count] if layer == x) for x in range(len(layers))]


def erk_densities(shapes: Sequence[Sequence[int]], sparsity: float, cap: float, floor: float) -> list[float]:
    """Bisection on e: the kept weights never fall when e grows."""
    raw = [sum(shape) / math.prod(shape) for shape in shapes]
    totals = [math.prod(shape) for shape in shapes]
    wanted = (1 - sparsity) * sum(totals)

    def densities(e: float) -> list[float]:
        return [min(cap, max(floor, e * r)) for r in raw]

    low, high = 0.0, cap / min(raw)
    for _ in range(200):
        middle = (low + high) / 2
        if sum(n * d for n, d in zip(totals, densities(middle), strict=True)) < wanted:
            low = middle
        else:
            high = middle
    return densities(high)


def greedy(
    grids: Sequence[Sequence[float]], costs: Sequence[Sequence[float]], totals: Sequence[int], target: float
) -> list[int]:
    """The paper's Algorithm 1, looking at every layer in every step."""
    budget = sum(pruned_count(n, target) for n in totals)
    levels = [0] * len(totals)
    while sum(pruned_count(n, grids[i][levels[i]]) for i, n in enumerate(totals)) < budget:
        best = None
        for i, n in enumerate(totals):
            k = levels[i]
            if k + 1 < len(grids[i]):
                step = (costs[i][k + 1] - costs[i][k]) / ((grids[i][k + 1] - grids[i][k]) * n)
                if best is None or step < best[0]:
                    best = (step, i)
        assert best is not None
        levels[best[1]] += 1
    return levels


def best_cost(
    grids: Sequence[Sequence[float]], costs: Sequence[Sequence[float]], totals: Sequence[int], target: float
) -> float:
    """The least cost of any choice of levels that meets the budget, by trying them all."""
    budget = sum(pruned_count(n, target) for n in totals)
    return min(
        sum(cost[k] for cost, k in zip(costs, levels, strict=True))
        for levels in itertools.product(*(range(len(grid)) for grid in grids))
        if sum(pruned_count(n, g[k]) for n, g, k in zip(totals, grids, levels, strict=True)) >= budget
    )


# --- the diagnostics, literally: a copy of the model per layer and sparsity ----------------------------------------

EPS = 1e-8


def outputs_of(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """What module `name` puts out, as [N, C, P] in float64 (a Linear's channels are last)."""
    found: list[Tensor] = []
    module = model.get_submodule(name)
    handle = module.register_forward_hook(lambda _module, _args, output: found.append(output.detach().double()))
    with torch.no_grad():
        model(images)
    handle.remove()
    (output,) = found
    if isinstance(module, nn.Linear):
        output = output.movedim(-1, 1)
    return output.reshape(output.shape[0], output.shape[1], -1)


def distance(a: Tensor, b: Tensor) -> float:
    """The mean over samples of the mean over channels of |a_c - b_c|^2 / (|a_c|^2 + eps)."""
    per_sample = []
    for a_sample, b_sample in zip(a, b, strict=True):
        ratios = [float(((x - y) ** 2).sum() / ((x**2).sum() + EPS)) for x, y in zip(a_sample, b_sample, strict=True)]
        per_sample.append(sum(ratios) / len(ratios))
    return sum(per_sample) / len(per_sample)


def prune_layer_(model: nn.Module, name: str, sparsity: float) -> None:
    weight = model.get_parameter(f"{name}.weight")
    kept = mask(weight.detach().flatten().tolist(), pruned_count(weight.numel(), sparsity))
    with torch.no_grad():
        weight.mul_(torch.tensor(kept).view(weight.shape))


def channel_scales(dense: Tensor, pruned: Tensor, shrinkage: float, tau: str = "median") -> list[float]:
    """gamma for each channel, from activations [N, C, P]."""
    var_d = [float(x.var(unbiased=False)) for x in dense.transpose(0, 1)]
    var_p = [float(x.var(unbiased=False)) for x in pruned.transpose(0, 1)]
    var_p = [0.0 if v < 1e-12 * float((x**2).mean()) else v for v, x in zip(var_p, pruned.transpose(0, 1), strict=True)]
    live = [v for v in var_p if v > 1e-12 * max(var_p)]
    middle = {"median": statistics.median, "mean": statistics.fmean}[tau](live) if live else 0.0
    gammas = []
    for d, p in zip(var_d, var_p, strict=True):
        shrunk = p / (p + shrinkage * middle) if p > 0 else 0.0
        gammas.append(math.exp(shrunk * (math.log(d + EPS) - math.log(p + EPS)) / 2))
    return gammas


def diagnose(
    model: nn.Module,
    images: Tensor,
    layer: str,
    sparsity: float,
    *,
    repair: str = "cr+bn",
    norm: str | None = None,
    shrinkage: float = 0.1,
    tau: str = "median",
) -> tuple[float, float, float]:
    """raw, residual, rr of one layer at one sparsity, observed at the layer, or at the BatchNorm `norm` behind it."""
    observed = norm or layer
    dense = copy.deepcopy(model).eval()
    pruned = copy.deepcopy(dense)
    prune_layer_(pruned, layer, sparsity)
    repaired = copy.deepcopy(pruned)
    if "cr" in repair.split("+"):
        gammas = channel_scales(outputs_of(dense, layer, images), outputs_of(pruned, layer, images), shrinkage, tau)
        weight = repaired.get_parameter(f"{layer}.weight")
        with torch.no_grad():
            for filter_, gamma in zip(weight, gammas, strict=True):
                filter_.mul_(gamma)
    if norm and "bn" in repair.split("+"):
        repaired.get_submodule(norm).train()
        with torch.no_grad():
            for _ in range(20):
                repaired(images)
        repaired.eval()
    a = outputs_of(dense, observed, images)
    raw = distance(a, outputs_of(pruned, observed, images))
    residual = distance(a, outputs_of(repaired, observed, images))
    return raw, residual, (residual + EPS) / (raw + EPS)
