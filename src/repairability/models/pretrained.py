"""torchvision's ImageNet weights: the real download, and a clear word when there is no network."""

from __future__ import annotations

from urllib.error import URLError

from torch import nn

from repairability._vision import torchvision
from repairability.errors import InputError

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
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise InputError(f"{type(model).__name__} has no Linear head to replace")
    name, head = linear[-1]
    if head.out_features == num_classes:
        return
    parent, _, attribute = name.rpartition(".")
    setattr(
        model.get_submodule(parent), attribute, nn.Linear(head.in_features, num_classes, bias=head.bias is not None)
    )
