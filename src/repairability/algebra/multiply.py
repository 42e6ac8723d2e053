"""Products of matrices in float32, and inverses made of them, by the faster of the two libraries that torch holds.

torch's own product asks MKL, which leaves half of an AMD processor unused; oneDNN, which torch asks for convolutions,
does not: 480 against 210 GFLOP/s on two threads of a Zen 5. On Intel's processors they are alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repairability.algebra.grams import inverse_of

SMALL = 2**22
"""Multiply-adds of a product that is done before its library is chosen."""

HALVED = 512
"""Larger matrices are inverted by halves."""


def times(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of [G, N, K] and [G, K, M], or of matrices."""
    if a.ndim == 3 and len(a) == 1:
        return times(a[0], b[0])[None]
    alike = a.dtype == b.dtype == torch.float32 and a.device.type == b.device.type == "cpu"
    if a.ndim != 2 or not alike or a.shape[0] * b.numel() < SMALL or not _has_onednn():
        return a @ b
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, _laid(b).mT, None, "none", [], "")
    return product


def _laid(b: Tensor) -> Tensor:
    """By rows or by columns, without gaps: with any, oneDNN is a thousand times slower."""
    return b if b.is_contiguous() or b.mT.is_contiguous() else b.contiguous()


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]


def inverse(gram: Tensor) -> Tensor:
    """Of a Gram [K, K], or of each of [C, K, K], to rounding times its condition.

    By halves, with t = b' a^-1 and the Schur complement s = d - t b: the inverse of [[a, b], [b', d]] is
    [[a^-1 + t' s^-1 t, -t' s^-1], [-s^-1 t, s^-1]]. As many operations as Cholesky's way and a third more, but nearly
    all of them in large products.
    """
    size = gram.shape[-1]
    if size <= HALVED:
        return inverse_of(gram)
    if gram.ndim == 3:
        return torch.stack([inverse(one) for one in gram])
    half = size // 2
    first, beside = inverse(gram[:half, :half]), gram[:half, half:]
    reduced = times(beside.mT, first)  # t [size - half, half]
    last = inverse(gram[half:, half:] - times(reduced, beside))
    corner = times(last, reduced)
    whole = torch.empty_like(gram)
    whole[:half, :half] = first + times(reduced.mT, corner)
    whole[half:, :half] = -corner
    whole[:half, half:] = -corner.mT
    whole[half:, half:] = last
    return whole
