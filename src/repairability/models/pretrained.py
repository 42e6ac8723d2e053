"""torchvision's ImageNet weights: the real download, and a clear word when there is no network."""

from __future__ import annotations

from urllib.error import URLError

from torch import nn

from repairability._vision import torchvision
from repairability.errors import InputError
from repairability.models.weights import last_linear

PRETRAINED = "imagenet"


def pretrained_model(name: str, num_classes: int | None) -> nn.Module:
    """The network with its ImageNet weights (hash-checked, read weights-only); a new head for other classes."""
    models = torchvision("models")
    weights = models.get_model_weights(name).DEFAULT
    model: nn.Module = models.get_model(name)
    try:
        state = weights.get_state_dict(progress=True, check_hash=True, weights_only=True)
    except (URLError, OSError) as error:
        raise InputError(
            f"the ImageNet weights of {name} could not be downloaded ({error}); offline, give a file instead: "
            f"weights=PATH (torchvision's {weights.url.rsplit('/', 1)[-1]}, or safetensors)"
        ) from error
    model.load_state_dict(state)
    if num_classes is not None:
        replace_head_(model, num_classes)
    return model


def replace_head_(model: nn.Module, num_classes: int) -> None:
    """Give a classifier of ours a new last Linear layer, unless the old one fits."""
    name, head = last_linear(model) or ("", None)
    if head is None:
        raise InputError(f"{type(model).__name__} has no Linear head to replace")
    if head.out_features != num_classes:
        parent, _, attribute = name.rpartition(".")
        new = nn.Linear(head.in_features, num_classes, bias=head.bias is not None)
        setattr(model.get_submodule(parent), attribute, new)
