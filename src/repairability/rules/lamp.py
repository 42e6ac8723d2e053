"""LAMP (Lee et al., 2021): layer-adaptive magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np

from repairability.allocation import Allocation, target_count
from repairability.network.layers import Layers
from repairability.rules.cut import cut


def lamp(layers: Layers, sparsity: float, curves: Any = None) -> Allocation:
    """One global cut on score(w) = w^2 / (sum of w'^2 over the weights of its layer from w upwards)."""
    scores = [lamp_scores(layer.magnitudes()) for layer in layers]
    sparsities = cut(layers, scores, target_count(layers.totals.values(), sparsity))
    return Allocation(sparsities, layers.totals, layers.n_all, "lamp", sparsity)


def lamp_scores(magnitudes: np.ndarray) -> np.ndarray:
    """The scores of one layer in ascending order of |w|, float64.

    The i-th smallest weight has score w_i^2 / sum_{j >= i} w_j^2, and 0/0 = 0. Scores never fall with i (the
    numerator grows, the denominator shrinks, in floating point too), so cutting by score prunes by magnitude.
    """
    squares = np.square(np.sort(magnitudes), dtype=np.float64)
    sums = np.cumsum(squares[::-1])[::-1]  # sum over j >= i
    scores: np.ndarray = np.divide(squares, sums, out=np.zeros_like(squares), where=sums > 0)
    return scores
