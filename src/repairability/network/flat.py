"""Activations with flat ends: what lies beyond them is not felt behind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LOOKS = frozenset(
    {"__get__", "size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex", "__len__"}
)
"""Functions that ask a tensor about itself and do not use its values."""


@dataclass(frozen=True)
class Flat:
    """An activation that is constant below `low` and above `high`. `summed`: it takes the sum of a layer's branch and
    another.
    """

    low: float
    high: float
    summed: bool = False


def flat_of(function: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, summed: bool) -> Flat | None:
    """The activation that a call is, or None where it has no flat end."""
    ends = _ENDS.get(function.removesuffix("_"))
    if ends is None:
        return None
    low, high = ends if not isinstance(ends, str) else _bounds(ends, args, kwargs)
    return None if low == -math.inf and high == math.inf else Flat(low, high, summed)


def _bounds(names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, float]:
    """Both ends as the call gives them, by place or by name; tensors are left alone."""
    ends = []
    for i, (name, default) in enumerate(zip(names.split(), (-math.inf, math.inf), strict=True)):
        given = args[i + 1] if i + 1 < len(args) else kwargs.get(name)
        if given is None:
            given = _DEFAULTS.get(name, default)
        ends.append(float(given) if isinstance(given, (int, float)) else math.nan)
    return (-math.inf, math.inf) if any(map(math.isnan, ends)) else (ends[0], ends[1])


_DEFAULTS = {"min_val": -1.0, "max_val": 1.0}  # of hardtanh

_ENDS: dict[str, tuple[float, float] | str] = {
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
    "hardswish": (-3.0, math.inf),
    "hardsigmoid": (-3.0, 3.0),
    "hardtanh": "min_val max_val",
    "clamp": "min max",
    "clip": "min max",
}
