"""What of a model's output counts: picked from a tuple, a mapping or a ModelOutput."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from repairability.errors import InputError

Output = str | int | Callable[[Any], Tensor] | None
"""Which part of an output: its key or attribute, its place, a function of it; None: the logits, or the first tensor."""

LOGITS = "logits"


def picked(raw: Any, output: Output = None) -> Tensor:
    """One tensor of an output, as float32 or wider."""
    tensor = _part(raw, output)
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() < 1:
        got = f"a tensor of {tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else _kinds(raw)
        raise InputError(
            f"what is compared must be a floating-point tensor [n, ...], and the model puts out {got}; "
            "output= picks a part by its name or place, or by a function of it"
        )
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def is_logits(raw: Any, output: Output, tensor: Tensor) -> bool:
    """Whether the last axis holds the logits of classes: it is called so, or it is the plain [n, classes]."""
    if tensor.shape[-1] < 2:
        return False
    called = output == LOGITS or (output is None and isinstance(raw, Mapping) and LOGITS in raw)
    return called or tensor.dim() == 2


def _part(raw: Any, output: Output) -> Any:
    if callable(output):
        return output(raw)
    if isinstance(output, str):
        part = raw.get(output) if isinstance(raw, Mapping) else getattr(raw, output, None)
        if part is None:
            raise InputError(f"the output has no {output!r}; it is {_kinds(raw)}")
        return part
    if isinstance(output, int):
        parts = list(raw.values()) if isinstance(raw, Mapping) else raw
        if not isinstance(parts, (tuple, list)) or not -len(parts) <= output < len(parts):
            raise InputError(f"the output has no part {output}; it is {_kinds(raw)}")
        return parts[output]
    if isinstance(raw, Mapping) and LOGITS in raw:
        return raw[LOGITS]
    every = raw.values() if isinstance(raw, Mapping) else raw if isinstance(raw, (tuple, list)) else (raw,)
    return next((x for x in every if isinstance(x, Tensor) and x.is_floating_point()), None)


def _kinds(raw: Any) -> str:
    if isinstance(raw, Mapping):
        return f"a mapping of {', '.join(map(str, raw)) or 'nothing'}"
    if isinstance(raw, (tuple, list)):
        return f"a {type(raw).__name__} of {len(raw)}: {', '.join(type(x).__name__ for x in raw[:4]) or 'nothing'}"
    return f"a {type(raw).__name__}"
