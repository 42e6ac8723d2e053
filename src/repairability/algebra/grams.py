"""Grams of filters' supports: cut out, factorised and solved, many at a time, also where they are singular.

Everything here is a function of tensors, in float64 on the Gram's device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repairability.errors import InputError

BATCH_BYTES = 256 * 2**20
"""A batch of gathered Grams is at most this large (or one matrix); two or three such batches live at once."""


def solve_on_support(gram: Tensor, right: Tensor, support: Tensor) -> Tensor:
    """x [R, K] with h_SS x_S = right_S on each filter's support S, and zero elsewhere; float64.

    Filters with one support (all those of a layer that lost nothing) share one factorisation. The others are sorted by
    the size of their support and solved in batches, padded with the identity. A batch is at most BATCH_BYTES (or one
    matrix); two or three live at once. Where h_SS is singular to working precision, a ridge is
    added that grows from 1e-12 of its mean diagonal until it is not.
    """
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or right.ndim != 2 or right.shape[1] != gram.shape[0]:
        raise InputError(f"a Gram {tuple(gram.shape)} does not fit right-hand sides {tuple(right.shape)}")
    gram, right = gram.detach().double(), right.detach().double()
    support = checked_support(support, right)
    inputs = right.shape[1]
    sizes = support.sum(1)  # [R]
    place = absent_first(support)  # [R, K]
    answer = torch.zeros_like(right)
    order = sizes.argsort(descending=True, stable=True)
    for rows in equal_rows(support):
        index = support[rows[0]].nonzero()[:, 0]  # [n]
        if len(index):
            factor = cholesky(gram[index][:, index][None])[0]
            solved = torch.cholesky_solve(right[rows][:, index].mT, factor).mT  # [C, n]
            answer[rows[:, None], index] = solved
        order = order[~torch.isin(order, rows)]
    for rows in chunks(order, sizes, None, BATCH_BYTES):
        size = int(sizes[rows].max())
        index = place[rows, inputs - size :]  # [C, n]
        absent = size - sizes[rows]  # [C]
        known = right[rows].gather(1, index).masked_fill_(leading(absent, size), 0.0)  # [C, n]
        factor = cholesky(sub_grams(gram, index, absent))
        solved = torch.cholesky_solve(known[:, :, None], factor)[:, :, 0]
        answer[rows] = answer[rows].scatter_(1, index, solved)  # the padding's places get its zeros
    return answer


def equal_rows(support: Tensor) -> list[Tensor]:
    """The rows of equal supports, where there are several of one."""
    powers = torch.linspace(1.0, 2.0, support.shape[1], dtype=torch.float64, device=support.device).sin()
    keys = support.double() @ powers  # [R]; equal for equal supports, and checked for the others
    _, group, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    rows = [(group == g).nonzero()[:, 0] for g in (counts > 1).nonzero()[:, 0].tolist()]
    return [x for x in rows if bool((support[x] == support[x[0]]).all())]


def checked_support(support: Tensor, like: Tensor) -> Tensor:
    if support.dtype != torch.bool or support.shape != like.shape:
        raise InputError(f"a support must be bool {tuple(like.shape)}, not {support.dtype} {tuple(support.shape)}")
    return support.to(like.device)


def absent_first(present: Tensor) -> Tensor:
    """[R, K]: the inputs of each filter, first those where it has no weight, each part ascending."""
    return present.to(torch.uint8).argsort(dim=1, stable=True)


def leading(absent: Tensor, size: int) -> Tensor:
    """bool [C, n]: the first absent[c] places of each row."""
    return torch.arange(size, device=absent.device) < absent[:, None]


def chunks(rows: Tensor, sizes: Tensor, rows_at_once: int | None, limit: int) -> list[Tensor]:
    """`rows` in order, in chunks that padded to their largest size stay within `limit` bytes; rows of size 0 left out.

    `rows` come largest first, so a chunk's first row is its largest. A row of less than 3/4 of that begins a new chunk:
    Cholesky's work goes with the cube of the size.
    """
    chunks: list[list[int]] = []
    largest = room = 0
    for row, size in zip(rows.tolist(), sizes[rows].tolist(), strict=True):
        if size == 0:
            continue
        if room == 0 or size < 0.75 * largest:
            chunks.append([])
            largest, room = size, rows_at_once or max(1, limit // (8 * size * size))
        chunks[-1].append(row)
        room -= 1
    return [torch.tensor(chunk, device=rows.device) for chunk in chunks]


def sub_grams(gram: Tensor, index: Tensor, absent: Tensor | None = None) -> Tensor:
    """[C, n, n]: the Gram at each row's inputs; the first absent[c] places of a row become those of an identity."""
    grams = sub_matrices(gram.expand(len(index), -1, -1), index)
    if absent is not None and bool((absent > 0).any()):
        padding = leading(absent, index.shape[1])  # [C, n]
        grams.masked_fill_(padding[:, :, None] | padding[:, None, :], 0.0)
        grams.diagonal(dim1=1, dim2=2).masked_fill_(padding, 1.0)
    return grams


def sub_matrices(matrices: Tensor, index: Tensor) -> Tensor:
    """[C, n, n] of [C, N, N]: each matrix at its own rows and columns.

    One matrix at a time, whole rows first: half the time of one indexing by [C, n, 1] and [C, 1, n].
    """
    chunk, size = index.shape
    parts = matrices.new_empty(chunk, size, size)
    for matrix, at, out in zip(matrices, index, parts, strict=True):
        torch.gather(matrix.index_select(0, at), 1, at.expand(size, size), out=out)
    return parts


def inverse_of(gram: Tensor) -> Tensor:
    """The inverse of a Gram [n, n], or of each of [C, n, n]."""
    inverse: Tensor = torch.cholesky_inverse(cholesky(gram if gram.ndim == 3 else gram[None]))
    return inverse.view(gram.shape)


def cholesky(grams: Tensor) -> Tensor:
    """Lower factors of [C, n, n]. Those that are singular to working precision get a ridge, growing tenfold from 1e-12
    of the mean diagonal, until every squared pivot is above rounding: n eps h_pp."""
    factors: Tensor
    factors, info = torch.linalg.cholesky_ex(grams)
    diagonals = grams.diagonal(dim1=1, dim2=2)  # [C, n]
    unit = diagonals.abs().mean(1)  # [C]
    unit = torch.where(unit > 0, unit, torch.ones_like(unit))
    rounding = grams.shape[1] * torch.finfo(grams.dtype).eps
    ridge = 1e-12
    singular = _singular(factors, info, diagonals, rounding)
    if bool(singular.any()) and not bool(grams.isfinite().all()):
        raise InputError("a Gram holds nan or inf")
    while bool(singular.any()):
        some = grams[singular].clone()
        some.diagonal(dim1=1, dim2=2).add_(ridge * unit[singular, None])
        factors[singular], info[singular] = torch.linalg.cholesky_ex(some)
        singular = _singular(factors, info, diagonals + ridge * unit[:, None] * singular[:, None], rounding)
        ridge *= 10
    return factors


def _singular(factors: Tensor, info: Tensor, diagonals: Tensor, rounding: float) -> Tensor:
    pivots = factors.diagonal(dim1=1, dim2=2).square()  # [C, n]
    bad: Tensor = (info != 0) | ~(pivots > rounding * diagonals).all(1)
    return bad
