"""The same sparsity everywhere."""

from __future__ import annotations

from typing import Any

from repairability.allocation import Allocation
from repairability.network.layers import Layers


def uniform(layers: Layers, sparsity: float, curves: Any = None) -> Allocation:
    """Every layer at the target."""
    return Allocation(dict.fromkeys(layers.names, sparsity), layers.totals, layers.n_all, "uniform", sparsity)
