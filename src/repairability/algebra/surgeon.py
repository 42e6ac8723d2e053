"""Optimal brain surgeon on the Gram matrix of a layer's inputs: which weights go when the others may answer.

The setting is one group of a layer: weights w [R, K] of R filters with K inputs each, one Gram h [K, K] of the centred
inputs (symmetric positive definite, its ridge already added) and scale [R] >= 0, the unit of a filter's loss. Changing
filter r by d costs scale_r d' h d. While S is what remains of a filter, the best removal of p in S costs
scale_r w_p² / [h_S⁻¹]_pp, moves the rest by w -= (w_p / [h_S⁻¹]_pp) h_S⁻¹[:, p], and takes p out of h_S⁻¹ by one step
of elimination (Frantar, Singh & Alistarh 2022, after Hassibi & Stork 1993).

Everything here is a function of tensors, in float64 on the Gram's device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from repairability.algebra.grams import (
    BATCH_BYTES,
    absent_first,
    checked_support,
    cholesky,
    chunks,
    inverse_of,
    sub_grams,
    sub_matrices,
)
from repairability.errors import InputError

TRACE_BYTES = 64 * 2**20
"""The same for the inverses that `removal_trace` carries along: smaller, for the sake of the cache."""


@dataclass(frozen=True, eq=False)
class Removal:
    """The order in which each filter of a group loses its weights, and what each step costs.

    order [R, K]: order[r, t] is the input whose weight filter r loses in step t. increase [R, K], float64: what that
    adds to the loss, in the unit of `scale`. forced [R]: a filter's first forced[r] steps come before every step that
    is not forced, whatever they cost: weights that were never there, or that `wide_trace` cut.
    """

    order: Tensor
    increase: Tensor
    forced: Tensor


def removal_trace(
    weights: Tensor,
    gram: Tensor,
    scale: Tensor,
    *,
    start: Tensor | None = None,
    rows_at_once: int | None = None,
) -> Removal:
    """The exact surgeon: every filter loses the weight that costs least, one by one, until none is left.

    `start` [R, K] is True where there is a weight at all; the others count as zero, come first and cost nothing. Among
    equal costs the lower index goes first. Within a filter the order does not depend on `scale` (which may be 0).

    About 2/3 K³ operations a filter, nearly all in matrix products (see `_eliminate`). Memory: `rows_at_once` filters
    carry an inverse of K² doubles each, twice while it is compressed; by default as many as fit TRACE_BYTES.
    """
    weights, gram, scale = _checked(weights, gram, scale)
    inputs = weights.shape[1]
    present = torch.ones_like(weights, dtype=torch.bool) if start is None else checked_support(start, weights)
    weights = weights.masked_fill(~present, 0.0)  # [R, K]
    image = weights @ gram  # [R, K], h w
    place = absent_first(present)  # [R, K]
    forced = (~present).sum(1)  # [R]
    order, increase = place.clone(), torch.zeros_like(weights)
    whole = inverse_of(gram) if bool((forced == 0).any()) else None
    for rows in chunks(forced.argsort(stable=True), inputs - forced, rows_at_once, TRACE_BYTES):
        size = inputs - int(forced[rows].min())
        index = place[rows, inputs - size :]  # [C, n]
        absent = forced[rows] - (inputs - size)  # [C], the leading places of `index` that hold no weight
        if whole is not None and int(forced[rows].max()) == 0:
            base = whole.expand(len(rows), size, size)
        else:
            base = inverse_of(sub_grams(gram, index, absent))  # [C, n, n]
        held, right = weights[rows].gather(1, index), image[rows].gather(1, index)  # [C, n]
        steps, costs = _eliminate(held, right, gram, index, base)
        order[rows, inputs - size :] = steps
        increase[rows, inputs - size :] = costs * scale[rows, None]
    return Removal(order, increase, forced)


def _eliminate(weights: Tensor, image: Tensor, gram: Tensor, index: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """(order, cost) [C, n] of a chunk: filter c has weights[c] at the inputs index[c], inverse[c] is theirs [C, n, n].

    Places that hold no weight (at most a quarter, by `chunks`) lead, with weight 0 and an identity: they go first.

    Removing weights one by one is a Cholesky factorisation of h_S⁻¹ whose pivots the costs choose. Hence its blocked
    form: with u_1 .. u_j the columns since the last update, h_S⁻¹ = inverse - Σ u u', so a step reads one row of the
    inverse, and only once an eighth is gone is it compressed to what is left and updated, by one matrix product.

    Rounding: the inverse of an ill-conditioned Gram is large, and what follows is its cancellation. So whenever half of
    the weights are gone, inverse and weights are computed afresh from the Gram; and a pivot [h_S⁻¹]_pp is never let
    below its least possible value, 1 / h_pp.
    """
    chunk, size = index.shape
    rows = torch.arange(chunk, device=gram.device)
    order, costs = torch.empty_like(index), torch.empty_like(weights)
    pivots = inverse.diagonal(dim1=1, dim2=2).clone()  # [C, n]
    fresh, done = size, 0
    while True:
        block = min(size, max(8, size // 8))
        least = _least_pivots(gram, index)  # [C, n]
        columns = gram.new_empty(chunk, block, size)  # [C, B, n]
        for j in range(block):
            cost = (weights * weights).div_(pivots)  # [C, n]
            best, at = cost.min(1)  # [C]; the first among equals
            order[:, done + j] = index[rows, at]
            costs[:, done + j] = best
            column = inverse[rows, at]  # [C, n]
            if j:
                behind = columns[:, :j]  # [C, j, n]
                column = torch.baddbmm(
                    column[:, None], behind.gather(2, at.view(-1, 1, 1).expand(-1, j, 1)).mT, behind, alpha=-1.0
                )[:, 0]
            root = pivots[rows, at].sqrt_()[:, None]  # [C, 1]
            column = column / root
            columns[:, j] = column
            pivots.addcmul_(column, column, value=-1.0)
            torch.maximum(pivots, least, out=pivots)
            weights = torch.addcmul(weights, column, weights[rows, at][:, None] / root, value=-1.0)
            weights[rows, at] = torch.inf  # gone: infinitely dear
        done += block
        size -= block
        if size == 0:
            return order, costs
        left = weights.isinf().to(torch.uint8).argsort(dim=1, stable=True)[:, :size]  # [C, n], ascending
        index, image = index.gather(1, left), image.gather(1, left)
        if size <= fresh // 2:
            factor = cholesky(sub_grams(gram, index))
            inverse = torch.cholesky_inverse(factor)
            weights = torch.cholesky_solve(image[:, :, None], factor)[:, :, 0]
            pivots = torch.maximum(inverse.diagonal(dim1=1, dim2=2), _least_pivots(gram, index))
            fresh = size
        else:
            columns = columns.gather(2, left[:, None].expand(-1, block, -1))
            inverse = sub_matrices(inverse, left).baddbmm_(columns.mT, columns, alpha=-1.0)
            weights, pivots = weights.gather(1, left), pivots.gather(1, left)


def mask_of(trace: Removal, count: int) -> Tensor:
    """bool [R, K], True where a weight stays when exactly `count` of the group go; nested in `count`.

    Within a filter the order is the trace's; across filters the one goes on whose next step is cheapest (among equals
    the lower filter); forced steps before all others.
    """
    filters, inputs = trace.order.shape
    if not 0 <= count <= filters * inputs:
        raise InputError(f"cannot remove {count} of {filters * inputs} weights")
    taken = torch.bincount(_sequence(trace)[:count] // max(inputs, 1), minlength=filters)  # [R], steps of each filter
    steps = torch.arange(inputs, device=trace.order.device)  # [K]
    return torch.empty_like(trace.order, dtype=torch.bool).scatter_(1, trace.order, steps >= taken[:, None])


def _sequence(trace: Removal) -> Tensor:
    """[R K]: the steps of all filters, as r K + t, in the order of the greedy choice across filters.

    The greedy choice takes the filter whose next step costs least, among equals the lowest. With m_rt = max of
    increase[r, s] over s <= t, that is the order (m_rt, r, t). Proof: say the greedy choice takes step (r, t) and
    increase[r, t] is a new maximum m of its filter. Then every other filter s has a next step that costs at least m,
    and more than m if s < r. So it stays with r while r's next step costs at most m: exactly r's steps with the key m,
    and leaves every filter with a next step that is a new maximum of that filter. Hence by induction it always takes
    whole runs of equal (m, r), always the run whose (m, r) is least among the filters' next ones; and as the runs of a
    filter ascend in m, that is their order by (m, r). A stable sort of the keys, filter by filter, gives it.

    Forced steps are sorted in the same way among themselves, before the others.
    """
    inputs = trace.order.shape[1]
    forced = torch.arange(inputs, device=trace.order.device) < trace.forced[:, None]  # [R, K]
    first = trace.increase.masked_fill(~forced, 0.0)
    rest = trace.increase.masked_fill(forced, 0.0)
    if inputs:
        first, rest = first.cummax(1).values, rest.cummax(1).values
    order = torch.where(forced, first, rest).flatten().argsort(stable=True)
    return order[(~forced).flatten()[order].to(torch.uint8).argsort(stable=True)]


def wide_trace(weights: Tensor, gram: Tensor, scale: Tensor, *, limit: int) -> Removal:
    """The surgeon for filters with many inputs: cut to `limit` weights a filter, then exact.

    The cut ranks a filter's weights by w_p² / [h⁻¹]_pp, each as if it went alone, and refits the rest:
    w_S <- h_SS⁻¹ (h w)_S. With limit >= K this is `removal_trace`. (benchmarks/surgeon.py: a limit of five times the
    weights that a filter keeps on average lost nothing against the exact trace, one of three times 2 to 7 %.)

    The cut weights are forced steps: a mask of at least R (K - limit) removals leaves no filter more than `limit`
    weights, even where an exact choice would. The cut's true loss, d' h d of the refitted filter, is shared among its
    weights in proportion to their rank's cost; so the curve is exact from R (K - limit) removals on (for this order),
    and an estimate before.

    Memory: three matrices of K² doubles, or three batches of BATCH_BYTES.
    """
    weights, gram, scale = _checked(weights, gram, scale)
    filters, inputs = weights.shape
    if limit < 1:
        raise InputError(f"limit must be at least 1, not {limit}")
    if limit >= inputs:
        return removal_trace(weights, gram, scale)
    image = weights @ gram  # [R, K]
    everything = torch.arange(inputs, device=gram.device).expand(filters, inputs)  # [R, K]
    pivots = inverse_of(gram).diagonal().expand(filters, inputs)  # [R, K]
    cost = weights.square() / torch.maximum(pivots, _least_pivots(gram, everything))  # [R, K]
    cost, ranked = cost.sort(dim=1, stable=True)
    gone = inputs - limit
    index = ranked[:, gone:].sort(dim=1).values  # [R, limit], ascending
    fitted = _refit(gram, image, index)
    change = weights.scatter_add(1, index, -fitted)  # [R, K]
    loss = ((change @ gram) * change).sum(1)  # [R], unscaled
    present = torch.zeros_like(weights, dtype=torch.bool).scatter_(1, index, True)
    exact = removal_trace(torch.zeros_like(weights).scatter_(1, index, fitted), gram, scale, start=present)
    exact.order[:, :gone] = ranked[:, :gone]
    exact.increase[:, :gone] = _shares(cost[:, :gone]) * loss.clamp(min=0.0)[:, None] * scale[:, None]
    return exact


def _shares(costs: Tensor) -> Tensor:
    """Each row as parts of one; equal parts where all are 0."""
    costs = torch.where(costs.sum(1, keepdim=True) > 0, costs, torch.ones_like(costs))
    return costs / costs.sum(1, keepdim=True)


def _refit(gram: Tensor, image: Tensor, index: Tensor) -> Tensor:
    """h_SS⁻¹ image_S [R, n] for S = index[r]."""
    filters, size = index.shape
    right = image.gather(1, index)
    fitted = torch.empty_like(right)
    rows = torch.arange(filters, device=gram.device)
    for chunk in chunks(rows, torch.full_like(rows, size), None, BATCH_BYTES):
        factor = cholesky(sub_grams(gram, index[chunk]))
        fitted[chunk] = torch.cholesky_solve(right[chunk, :, None], factor)[:, :, 0]
    return fitted


def _checked(weights: Tensor, gram: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if weights.ndim != 2 or gram.shape != (weights.shape[1],) * 2 or scale.shape != weights.shape[:1]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (weights, gram, scale))
        raise InputError(f"weights [R, K], gram [K, K] and scale [R] do not fit: {shapes}")
    if not (weights.isfinite().all() and gram.isfinite().all() and scale.isfinite().all() and (scale >= 0).all()):
        raise InputError("weights, gram and scale must be finite, and scale not negative")
    return weights.detach().double(), gram.detach().double(), scale.detach().double()


def _least_pivots(gram: Tensor, index: Tensor) -> Tensor:
    """1 / h_pp, the least that [h_S⁻¹]_pp can be for any S with p in it."""
    return gram.diagonal().clamp(min=torch.finfo(gram.dtype).tiny)[index].reciprocal_()
