"""ERK (Evci et al., 2020): density from a layer's shape, between a floor and a cap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from repairability.allocation import Allocation, check_sparsity
from repairability.errors import BudgetError, InputError
from repairability.network.layers import Layers
from repairability.tables import percent


def erk(layers: Layers, sparsity: float, curves: Any = None, *, cap: float = 1.0, floor: float = 0.025) -> Allocation:
    """density_l = clip(e * raw_l, floor, cap), raw_l = sum of the weight's dimensions / their product, with the one e
    that meets the budget.
    """
    check_sparsity(floor, "floor")
    check_sparsity(cap, "cap")
    if not floor <= cap or cap == 0:
        raise InputError(f"floor must not exceed cap: floor={floor:g}, cap={cap:g}")
    raw = [erk_raw(layer.shape) for layer in layers]
    scale = erk_scale(raw, [layer.total for layer in layers], sparsity, cap=cap, floor=floor)
    densities = np.clip(scale * np.array(raw), floor, cap)
    sparsities = dict(zip(layers.names, (1 - densities).tolist(), strict=True))
    return Allocation(sparsities, layers.totals, layers.n_all, "erk", sparsity)


def erk_raw(shape: Sequence[int]) -> float:
    """(out + in + kernel dims) / (out * in * kernel dims)."""
    return sum(shape) / math.prod(shape)


def erk_scale(
    raw: Sequence[float], totals: Sequence[int], sparsity: float, *, cap: float = 1.0, floor: float = 0.025
) -> float:
    """The e for which sum_l n_l * clip(e * raw_l, floor, cap) is the number of kept weights.

    That sum is piecewise linear and never falls in e, with breaks where a layer leaves its floor or meets its cap;
    so the answer is one interpolation between two breaks, and no order of clipping can matter.
    """
    raws, weights = np.array(raw), np.array(totals, dtype=float)
    kept = (1 - sparsity) * weights.sum()
    breaks = np.unique(np.concatenate([floor / raws, cap / raws]))
    sums = (weights * np.clip(np.outer(breaks, raws), floor, cap)).sum(axis=1)
    slack = 1e-9 * weights.sum()
    if kept < sums[0] - slack or kept > sums[-1] + slack:
        low, high = 1 - sums[-1] / weights.sum(), 1 - sums[0] / weights.sum()
        raise BudgetError(
            f"ERK cannot reach sparsity {percent(sparsity)}: with floor {floor:g} and cap {cap:g} it reaches "
            f"{percent(low)} to {percent(high)}; {'lower the floor' if kept < sums[0] else 'raise the cap'}"
        )
    return float(np.interp(kept, sums, breaks))
