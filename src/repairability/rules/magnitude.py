"""Global magnitude, named `global`: one threshold on |w| for all layers."""

from __future__ import annotations

from typing import Any

from repairability.allocation import Allocation, pruned_count, target_count
from repairability.errors import BudgetError, InputError
from repairability.network.layers import Layers
from repairability.rules.cut import cut
from repairability.tables import percent

OVER = ("all", "prunable")


def magnitude(layers: Layers, sparsity: float, curves: Any = None, *, over: str = "all") -> Allocation:
    """The smallest weights of all layers go.

    `over="all"` (the paper's): round(S * n_all) weights go, a target over all convolution weights although the stem
    stays dense. `over="prunable"`: as many as every other rule prunes.
    """
    if over not in OVER:
        raise InputError(f"over must be one of {', '.join(OVER)}, not {over!r}")
    count = pruned_count(layers.n_all, sparsity) if over == "all" else target_count(layers.totals.values(), sparsity)
    if count > layers.total:
        raise BudgetError(
            f"global sparsity {percent(sparsity)} of all {layers.n_all:,} weights needs {count:,} pruned; only "
            f"{layers.total:,} are prunable, so {percent(layers.total / layers.n_all)} is reachable "
            "(or count over the prunable weights: over='prunable')"
        )
    sparsities = cut(layers, [layer.magnitudes() for layer in layers], count)
    return Allocation(sparsities, layers.totals, layers.n_all, "global", sparsity)
