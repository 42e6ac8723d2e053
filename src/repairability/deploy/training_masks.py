"""A pruned network to go on training: its masks as those of `torch.nn.utils.prune`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from repairability._torch import copy_of
from repairability.errors import InputError
from repairability.masks import Masks
from repairability.network.discover import layers_named


def masked_for_training(model: nn.Module, masks: Masks) -> nn.Module:
    """A copy of a pruned network in which an optimiser cannot bring pruned weights back: each weight is
    `weight_orig * weight_mask`, as `torch.nn.utils.prune.custom_from_mask` makes it.

    `state_dict` holds both; `torch.nn.utils.prune.remove` makes them one again, as every function of this package that
    takes a model does in its copy. For `masks` take those of a `PruneResult` or of a loaded checkpoint.
    """
    copied = copy_of(model)
    whole: dict[str, Tensor] = {}
    for layer in layers_named(copied, masks):
        parameter = copied.get_parameter(layer.place)
        if masks[layer.name].shape != layer.weight.shape:
            given = tuple(masks[layer.name].shape)
            raise InputError(f"the mask of layer {layer.name!r} has shape {given}, its weight {layer.shape}")
        mask = whole.setdefault(layer.place, torch.ones_like(parameter))
        part = mask if layer.part is None else mask[slice(*layer.part) if isinstance(layer.part, tuple) else layer.part]
        part.copy_(masks[layer.name])
    places = [(place, id(p)) for place, p in copied.named_parameters(remove_duplicate=False)]  # tied ones several times
    by_parameter = {id(copied.get_parameter(place)): mask for place, mask in whole.items()}
    for place, parameter_id in places:
        if parameter_id in by_parameter:
            owner, _, name = place.rpartition(".")
            prune.custom_from_mask(copied.get_submodule(owner), name, by_parameter[parameter_id])  # type: ignore[no-untyped-call]
    return copied
