"""Models by name: torchvision's, networks for 32 x 32 images, any `package.module:callable` or `file.py:callable`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from repairability._imports import imported, imported_from_file, names_a_file
from repairability._torch import batch_norms, evaluation_mode_, seeded
from repairability._vision import torchvision
from repairability.errors import InputError, first_line, shown, unknown
from repairability.models.small import QUARTER, CifarResNet, DigitsResNet, PlainVGG
from repairability.models.weights import PRETRAINED, load_weights_, pretrained_model


def resnet50_v1(num_classes: int = 1000) -> nn.Module:
    """ResNet50 as it was first published, and as Keras has it: in the first block of the later stages the stride stands
    on the 1 x 1 convolution (torchvision's is on the 3 x 3), and every BatchNorm has eps 1e-3.
    """
    model: nn.Module = torchvision("models").resnet50(num_classes=num_classes)
    for stage in ("layer2", "layer3", "layer4"):
        for name, stride in (("conv1", (2, 2)), ("conv2", (1, 1))):
            model.get_submodule(f"{stage}.0.{name}").stride = stride  # type: ignore[assignment]
    for norm in batch_norms(model).values():
        norm.eps = 1e-3
    return model


MODELS: dict[str, Callable[..., nn.Module]] = {
    **{f"resnet{depth}": partial(CifarResNet, depth) for depth in (20, 32, 44, 56, 110)},
    "vgg16_bn_quarter": partial(PlainVGG, QUARTER),
    "resnet50_v1": resnet50_v1,
    "digits": DigitsResNet,
}
"""Our own networks; every name that is not here is torchvision's."""

_INPUTS = {**dict.fromkeys(MODELS, (3, 32)), "resnet50_v1": (3, 224), "digits": (1, 16)}


def usual_input(name: str) -> tuple[int, int]:
    """Channels and side of the images that a network by this name usually takes."""
    return _INPUTS.get(name, (3, 224))


def create_model(
    name: str,
    *,
    num_classes: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    new_head: bool = False,
    seed: int = 0,
) -> nn.Module:
    """Build a network by name, in eval mode.

    `name` is a torchvision model ("resnet18"), the first ResNet50 ("resnet50_v1"), a network for 32 x 32 images
    ("resnet20", "vgg16_bn_quarter"), "package.module:callable" or "path/to/file.py:callable", which runs that file.
    `num_classes` is handed to the builder.
    `weights` is a safetensors or torch file of a state dict, or "imagenet" for torchvision's own (downloaded once; with
    another `num_classes` the head is new). A file for another `num_classes` is an error, unless `new_head` asks for
    its body alone. Without it the weights are random, drawn from `seed`.
    """
    if num_classes is not None and num_classes < 1:
        raise InputError(f"num_classes must be at least 1, not {num_classes}")
    if weights == PRETRAINED:
        _check_pretrained(name)
        with seeded(seed):
            return evaluation_mode_(pretrained_model(name, num_classes))
    build = _builder(name)
    options = {} if num_classes is None else {"num_classes": num_classes}
    with seeded(seed):
        try:
            model = build(**options)
        except TypeError as error:
            raise InputError(f"cannot build {name!r} with {options or 'no arguments'}: {first_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"{name!r} returned {type(model).__name__}, not a torch.nn.Module")
    if weights is not None:
        load_weights_(model, weights, new_head=new_head)
    return evaluation_mode_(model)


def names_a_callable(name: str) -> bool:
    """Whether a model is the user's own code, which makes it as it is, its weights perhaps among it."""
    return names_a_file(name) or ":" in name


def has_pretrained(name: str) -> bool:
    """Whether `PRETRAINED` weights are for a model: torchvision has them, of its own networks."""
    return not names_a_callable(name) and name not in MODELS


def _check_pretrained(name: str) -> None:
    if not has_pretrained(name):
        its_own = "what a callable makes" if names_a_callable(name) else "a network of ours"
        raise InputError(
            f"weights {PRETRAINED!r} are torchvision's, for its networks (resnet18); {shown(name)!r} is {its_own}: "
            "give a file of weights, or none"
        )
    _torchvision_builder(name)  # refuses what torchvision does not have


def _builder(name: str) -> Callable[..., Any]:
    if not names_a_callable(name):
        return MODELS.get(name) or _torchvision_builder(name)
    build: Callable[..., Any] = (imported_from_file if names_a_file(name) else imported)(name, "model")
    if isinstance(getattr(build, "__wrapped__", build), nn.Module):
        raise InputError(f"{name!r} is a network, not what makes one: name a class, or a function that returns it")
    return build


def _torchvision_builder(name: str) -> Callable[..., Any]:
    models = torchvision("models")
    known = models.list_models()
    if name not in known:
        raise unknown("model", name, [*MODELS, *known])
    builder: Callable[..., Any] = models.get_model_builder(name)
    if "weights_backbone" in inspect.signature(builder).parameters:  # which are ImageNet's unless one says so
        return partial(builder, weights_backbone=None)
    return builder
