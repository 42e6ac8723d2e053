"""Where the weights that stay stand, in about as few bits as the entropy of such a choice: arrays in, bytes out.

k of n positions chosen at random need n H(k / n) bits, H(p) = -p log2 p - (1 - p) log2(1 - p); no code for all such
choices needs less. A bitmask takes n bits. Rice's code writes each gap between neighbours as gap // 2^b in unary and
gap % 2^b in b bits: k (1 + b) + sum(gap // 2^b) <= k (1 + b) + (n - k) / 2^b bits, however the gaps look. Of
random ones that is 1 to 4 % above n H(p) wherever it beats the mask, and of any at most 12 % from 90 % gone on.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Bytes = NDArray[np.uint8]

ALL, MASK, RICE = "all", "mask", "rice"
CODINGS = (ALL, MASK, RICE)

_WIDEST = 48
"""Bits of a remainder: gaps beyond 2^48 are no weights of a network."""


def entropy_bytes(total: int, kept: int) -> float:
    """n H(k / n) / 8: the bytes that positions need."""
    if not 0 < kept < total:
        return 0.0
    share = kept / total
    return -total * (share * math.log2(share) + (1 - share) * math.log2(1 - share)) / 8


def encode(positions: Positions, total: int) -> tuple[str, int, Bytes]:
    """(coding, bits of a remainder, bytes) for ascending positions below `total`: the shortest of the codings."""
    if len(positions) == total:
        return ALL, 0, np.empty(0, np.uint8)
    gaps = np.diff(positions, prepend=-1) - 1
    bits = _remainder_bits(gaps)
    if _rice_bytes(len(gaps), int((gaps >> bits).sum()), bits) >= _whole_bytes(total):
        mask = np.zeros(total, bool)
        mask[positions] = True
        return MASK, 0, np.packbits(mask)
    ends = np.cumsum((gaps >> bits) + 1) - 1  # a quotient q is q zeros and a one: here the ones
    unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, bool)
    unary[ends] = True
    remainders = (gaps[:, None] >> np.arange(bits)) & 1  # lowest bit first
    return RICE, bits, np.concatenate([np.packbits(unary), np.packbits(remainders.astype(bool))])


def decode(coding: str, bits: int, stream: Bytes, count: int, total: int) -> Positions:
    """The positions back; a stream that does not hold exactly `count` of them below `total` is a ValueError."""
    if coding == ALL:
        found, used = np.arange(total), 0
    elif coding == MASK:
        found, used = np.flatnonzero(np.unpackbits(stream, count=min(total, 8 * len(stream)))), _whole_bytes(total)
    else:
        in_remainders = _whole_bytes(count * bits)
        used = len(stream)
        if in_remainders > used:
            raise ValueError(f"{used} bytes are too few for {count} remainders of {bits} bits")
        ones = np.flatnonzero(np.unpackbits(stream[: used - in_remainders]))
        if len(ones) != count:
            raise ValueError(f"its positions are {len(ones)}, not {count}")
        quotients = np.diff(ones, prepend=-1) - 1
        flags = np.unpackbits(stream[used - in_remainders :], count=count * bits).reshape(count, bits)
        remainders = flags.astype(np.int64) @ (1 << np.arange(bits))
        found = np.cumsum((quotients << bits) + remainders + 1) - 1
    if used != len(stream):
        raise ValueError(f"its positions take {len(stream)} bytes, not {used}")
    if len(found) != count:
        raise ValueError(f"its positions are {len(found)}, not {count}")
    if count and not 0 <= found[-1] < total:
        raise ValueError(f"a position is {found[-1]}, of {total} weights")
    return found


def _rice_bytes(count: int, quotients: int, bits: int) -> int:
    return _whole_bytes(quotients + count) + _whole_bytes(count * bits)


def _remainder_bits(gaps: Positions) -> int:
    """The width with the shortest code, among those near log2 of the mean gap."""
    if not len(gaps):
        return 0
    likely = int(math.log2(max(1.0, float(gaps.mean()))))
    near = range(max(0, likely - 2), min(_WIDEST, likely + 2) + 1)
    return min(near, key=lambda bits: _rice_bytes(len(gaps), int((gaps >> bits).sum()), bits))


def _whole_bytes(bits: int) -> int:
    return (bits + 7) // 8
