"""Numbers that are none: whether a network, or what it puts out, holds nan or inf; such a one is refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as trees

from repairability._torch.copies import batch_norms, is_lazy, unwrapped
from repairability.errors import InputError


def is_finite(tensor: Tensor) -> bool:
    """Whether every number of it is one; what holds no numbers (meta, lazy, sparse, quantised) is not asked."""
    low, high = _ends(tensor)
    return math.isfinite(low) and math.isfinite(high)


def check_finite(model: nn.Module, whose: str = "the network") -> None:
    """Refuse a network that has a broken tensor."""
    for name in broken_tensors(model):
        raise InputError(f"{name} of {whose} holds nan or inf")


def broken_tensors(model: nn.Module) -> Iterator[str]:
    """The parameters, and the statistics of BatchNorm, that hold nan or inf. Of other buffers those with nan alone: inf
    is what attention masks are made of.
    """
    network = unwrapped(model)
    learned: dict[str, Tensor] = dict(network.named_parameters(remove_duplicate=False))
    for name, norm in batch_norms(network).items():
        learned |= {f"{name}.{key}": buffer for key, buffer in norm.named_buffers(recurse=False)}
    others = {name: buffer for name, buffer in network.named_buffers() if name not in learned}
    yield from (name for name, tensor in learned.items() if not is_finite(tensor))
    yield from (name for name, tensor in others.items() if holds_nan(tensor))


def holds_nan(tensor: Tensor) -> bool:
    return math.isnan(_ends(tensor)[0])


def check_output(raw: Any, whose: str = "the network") -> None:
    """Refuse what a network puts out where it holds nan or inf; -inf, by which networks rule a class out, may be."""
    for tensor in trees.tree_leaves(raw):
        if isinstance(tensor, Tensor) and not _ends(tensor)[1] < math.inf:
            raise InputError(f"{whose} puts out nan or inf for these samples")


def _ends(tensor: Tensor) -> tuple[float, float]:
    """The least and the largest of its numbers; nan spreads through both."""
    floating = tensor.is_floating_point() or tensor.is_complex()
    held = not (is_lazy(tensor) or tensor.is_meta or tensor.is_quantized) and tensor.layout == torch.strided
    if not floating or not held or not tensor.numel():
        return 0.0, 0.0
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    least, largest = torch.aminmax(values.float() if values.dtype.itemsize == 1 else values)
    return float(least), float(largest)
