"""Which weights go: exact counts under any ties, all levels of a layer from one selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from repairability._torch import masked_names, unwrapped
from repairability.allocation import Allocation
from repairability.errors import InputError
from repairability.naming import ByLayer
from repairability.network.discover import layers_named
from repairability.network.layers import Layers
from repairability.tables import Table


@dataclass(frozen=True, eq=False)
class Masks(ByLayer[Tensor]):
    """layer -> bool tensor of the weight's shape, True where the weight stays."""

    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        for layer, mask in self.tensors.items():
            if mask.dtype != torch.bool:
                raise InputError(f"the mask of layer {layer!r} must be bool, not {mask.dtype}")
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    def by_layer(self) -> Mapping[str, Tensor]:
        return self.tensors

    def kept(self, layer: str) -> int:
        return int(self[layer].count_nonzero())

    def table(self) -> Table:
        rows = [
            (x, f"{self.kept(x):,}", f"{m.numel():,}", f"{1 - self.kept(x) / m.numel():.4f}") for x, m in self.items()
        ]
        return Table(("layer", "kept", "total", "sparsity"), rows)

    def __str__(self) -> str:
        return str(self.table())


def magnitude_mask(magnitudes: np.ndarray, count: int) -> NDArray[np.bool_]:
    """True where a weight stays when exactly `count` go: smallest |w| first, among equals the lower index first."""
    return _mask(magnitudes, count, _thresholds(magnitudes, [count])[0])


def magnitude_levels(magnitudes: np.ndarray, counts: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """All nested masks of one layer at once: (index, last).

    `counts` are the pruned counts of the levels, ascending (at most 255). `index` lists the weights that stay at
    level 0, ascending; weight index[j] stays at the levels 0 .. last[j] and is gone from the next on.
    """
    thresholds = _thresholds(magnitudes, counts)
    index = np.flatnonzero(_mask(magnitudes, counts[0], thresholds[0]))
    left = magnitudes[index]  # ties within it keep their order, so the same tie rule serves
    last = np.zeros(index.size, dtype=np.uint8)
    for count, threshold in zip(counts[1:], thresholds[1:], strict=True):
        last += _mask(left, count - counts[0], threshold)
    return index, last


def _thresholds(magnitudes: np.ndarray, counts: Sequence[int]) -> list[float]:
    """The count-th smallest magnitude for each of the ascending `counts`.

    Each selection works on what the one before left above its pivot. So the whole costs little more than the first,
    and each is NumPy's single-pivot partition (vectorised; the multi-pivot call is not, and takes ten times as long).
    """
    thresholds: list[float] = []
    rest, below = magnitudes, 0  # `below` weights lie left of `rest`
    for count in counts:
        if count == 0:
            thresholds.append(-np.inf)
            continue
        pivot = count - 1 - below
        rest = np.partition(rest, pivot)[pivot:]
        below += pivot
        thresholds.append(rest[0])
    return thresholds


def _mask(magnitudes: np.ndarray, count: int, threshold: float) -> NDArray[np.bool_]:
    kept: NDArray[np.bool_] = magnitudes > threshold
    surplus = magnitudes.size - int(np.count_nonzero(kept)) - count  # weights equal to the threshold that must stay
    if surplus > 0:
        tied = np.flatnonzero(magnitudes == threshold)
        kept[tied[tied.size - surplus :]] = True
    return kept


def make_masks(model: nn.Module | Layers, allocation: Allocation) -> Masks:
    """Magnitude masks for `model` with exactly the allocation's pruned counts; the model is only read."""
    masks = {}
    for layer in layers_named(model, allocation):
        if layer.total != allocation.totals[layer.name]:
            raise InputError(
                f"layer {layer.name!r} has {layer.total} weights, the allocation was made for one with "
                f"{allocation.totals[layer.name]}"
            )
        kept = magnitude_mask(layer.magnitudes(), allocation.pruned(layer.name))
        masks[layer.name] = torch.from_numpy(kept).view(layer.shape).to(layer.weight.device)
    return Masks(masks)


def apply_masks_(model: nn.Module, masks: Masks) -> None:
    """Set every pruned weight of `model` to zero, in place. The one place where pruning writes weights."""
    layers, masked = layers_named(model, masks), masked_names(unwrapped(model))
    for layer in layers:
        if layer.name in masked:
            raise InputError(
                f"layer {layer.name!r} has a mask of torch.nn.utils.prune already; make it permanent first"
            )
        if masks[layer.name].shape != layer.weight.shape:
            raise InputError(
                f"the mask of layer {layer.name!r} has shape {tuple(masks[layer.name].shape)}, its weight {layer.shape}"
            )
    with torch.no_grad():
        for layer in layers:
            layer.weight.masked_fill_(~masks[layer.name].to(layer.weight.device), 0)
