"""Which weights stay, by alternating directions: a fit that is pulled toward sparsity, and its sparse projection.

Per filter, with the Gram h of its inputs and w* the best weights on all of them, min scale (w - w*)' h (w - w*) over
weights w of which only so many are not zero. It is split into w = d, w free and d sparse, with a multiplier v for the
difference (Boyd et al. 2011; for pruning Meng et al. 2024):

    w <- (h + rho)^-1 (h w* + rho d - v),   d <- the largest |w + v / rho|,   v <- v + rho (w - d).

Each step lets weights that were dropped come back, which a removal one by one never does; and it costs one product of
all filters with a K x K matrix, where that needs K^3 operations for each filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from repairability.algebra.multiply import inverse, times
from repairability.errors import InputError

WEAK, STRONG = 0.1, 1.0
"""The pull rho, in units of an input's own energy: it grows from weak to strong in equal ratios."""


def alternating(weights: Tensor, grams: Tensor, scale: Tensor, count: int, *, stages: int, steps: int) -> Tensor:
    """Values [G, R, K] whose `count` smallest, by magnitude, are those to remove.

    weights [G, R, K] are w*, grams [G, K, K] positive definite, scale [G, R] >= 0 the worth of a filter's error;
    `stages` values of rho, `steps` for each. All in units in which every input has energy 1 and every filter is worth
    the same, so that one threshold serves all filters; in float32, since a choice is made of it and no weight.
    """
    search = _Search(weights, grams, scale)
    for stage in range(stages):
        search.pull_by(WEAK * (STRONG / WEAK) ** (stage / max(1, stages - 1)))
        search.go(count, steps)
    return search.point


def alternating_levels(
    weights: Tensor, grams: Tensor, scale: Tensor, counts: Sequence[int], *, steps: int
) -> Iterator[Tensor]:
    """The same for each of several counts, by a shorter search that goes on from one to the next under one rho: a
    fraction of the price of a search for each, and a little dearer in error.
    """
    search = _Search(weights, grams, scale)
    search.pull_by(STRONG)
    for count in counts:
        search.go(count, steps)
        yield search.point


class _Search:
    """w (free), d (sparse), u = v / rho (what d left out), and the values w + u of which d keeps the largest (point).

    h w* + rho d - v = (h + rho) w* + rho (d - u - w*), so that w = w* + rho (d - u - w*) (h + rho)^-1.
    """

    def __init__(self, weights: Tensor, grams: Tensor, scale: Tensor) -> None:
        square = (len(weights), *weights.shape[2:] * 2)
        if weights.ndim != 3 or grams.shape != square or scale.shape != weights.shape[:2]:
            shapes = ", ".join(str(tuple(x.shape)) for x in (weights, grams, scale))
            raise InputError(f"weights [G, R, K], grams [G, K, K] and scale [G, R] do not fit: {shapes}")
        energy = grams.diagonal(dim1=1, dim2=2).sqrt()  # [G, K]
        unit = torch.where(energy > 0, energy, torch.ones_like(energy))
        best = (weights * scale.sqrt()[..., None] * energy[:, None]).float()
        self.gram = (grams / unit[:, :, None] / unit[:, None]).float()
        level = best.abs().max()
        if not (level.isfinite() and self.gram.isfinite().all()):
            raise InputError("weights, grams and scale must be finite")
        self.best = best / level if level > 0 else best  # far from float32's ends
        self.point = self.best
        self.sparse: Tensor | None = None
        self.left = torch.zeros_like(self.best)
        self.rho = 1.0

    def pull_by(self, rho: float) -> None:
        pulled = self.gram.clone()
        pulled.diagonal(dim1=1, dim2=2).add_(rho)
        self.inverse = rho * inverse(pulled)
        self.left *= self.rho / rho  # v stays
        self.rho = rho

    def go(self, count: int, steps: int) -> None:
        if not 0 <= count <= self.point.numel():
            raise InputError(f"cannot remove {count} of {self.point.numel()} weights")
        sparse = _largest(self.point, count) if self.sparse is None else self.sparse
        for _ in range(steps):
            self.point = times(sparse - self.left - self.best, self.inverse).add_(self.best).add_(self.left)
            sparse = _largest(self.point, count)
            self.left = self.point - sparse
        self.sparse = sparse


def _largest(values: Tensor, count: int) -> Tensor:
    """The values without their `count` smallest magnitudes (and those that equal the last of them)."""
    if not count:
        return values
    magnitudes = values.abs()
    threshold = float(np.partition(magnitudes.flatten().cpu().numpy(), count - 1)[count - 1])
    return torch.where(magnitudes > threshold, values, torch.zeros_like(values))
