"""One cut through the scores of all layers, with an exact count: what `global` and `lamp` share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repairability.network.layers import Layers


def cut(layers: Layers, scores: Sequence[np.ndarray], count: int) -> dict[str, float]:
    """The sparsity of each layer when the `count` lowest scores go; among equals the earlier layer loses first."""
    if count == 0:
        return dict.fromkeys(layers.names, 0.0)
    pooled = np.concatenate(scores)
    pooled.partition(count - 1)
    threshold = pooled[count - 1]
    pruned = [int(np.count_nonzero(score < threshold)) for score in scores]
    left = count - sum(pruned)
    for i, score in enumerate(scores):
        tied = min(left, int(np.count_nonzero(score == threshold)))
        pruned[i] += tied
        left -= tied
    return {layer.name: p / layer.total for layer, p in zip(layers, pruned, strict=True)}
