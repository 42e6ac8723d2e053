"""Slow, obvious versions of what the package does fast. Imports nothing of it: a second opinion."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

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
