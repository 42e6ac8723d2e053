"""Scratch: memory for intermediate values that is used again and again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Scratch:
    """Tensors by name, each valid until the next of its name: memory that the system hands out anew at every chunk
    costs more than the arithmetic on it. For one thread at a time; it grows to the largest that was taken.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised tensor."""
        key, size = (name, dtype, device), math.prod(shape)
        if key not in self._held or self._held[key].numel() < size:
            self._held[key] = torch.empty(size, dtype=dtype, device=device)
        return self._held[key][:size].view(shape)
