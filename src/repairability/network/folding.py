"""A network as fast as it goes for evaluation: BatchNorm folded into the convolutions before it, channels last."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils import _pytree as trees

from repairability._torch import copy_of, evaluating, evaluation_mode_
from repairability.network.batches import run, to_model
from repairability.network.candidates import refittable_layers
from repairability.network.kinds import KINDS
from repairability.network.layers import Layers
from repairability.network.trace import trace

_TOLERANCE = 1e-3
"""Of the largest output. Folding changes the order of rounding: 1e-6 of it; a wrong pair changes everything."""


def for_inference(model: nn.Module, images: Tensor) -> nn.Module:
    """A copy that computes the same outputs, only faster: without BatchNorm where it folds, channels last."""
    folded = without_norms(model, images)
    folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return folded


def without_norms(model: nn.Module, images: Tensor) -> nn.Module:
    """A copy with BatchNorm in the convolution before it: w' = w * g, b' = (b - mean) * g + beta, with
    g = gamma / sqrt(var + eps), wherever a convolution's output goes into one BatchNorm and nowhere else.

    The copy is checked on the first images; where it does not agree (an output that is used twice), a plain copy is
    returned.
    """
    folded = copy_of(model)
    batch = to_model(images[:8], model)
    with evaluating(model) as network:
        expected = run(network, batch)
    for conv, norm in _pairs(folded, batch):
        parent, _, name = conv.rpartition(".")
        fused = fuse_conv_bn_eval(folded.get_submodule(conv), folded.get_submodule(norm))  # type: ignore[type-var, arg-type]
        setattr(folded.get_submodule(parent), name, fused)
        parent, _, name = norm.rpartition(".")
        setattr(folded.get_submodule(parent), name, nn.Identity())
    with evaluating(folded) as network:
        given = run(network, batch)
    return folded if _same(given, expected) else copy_of(model)


def _same(given: object, expected: object) -> bool:
    """Of networks with several outputs, each; what is no number is not the same, nor is what cannot be looked into (an
    object of the user's own class).
    """
    pairs = list(zip(trees.tree_leaves(given), trees.tree_leaves(expected), strict=True))
    return any(_has_numbers(y) for _, y in pairs) and all(_same_leaf(x, y) for x, y in pairs)


def _has_numbers(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()) and leaf.numel() > 0


def _same_leaf(given: object, expected: object) -> bool:
    if not isinstance(expected, Tensor) or not isinstance(given, Tensor):
        return expected is None or isinstance(expected, (str, int, float, complex))
    if not _has_numbers(expected):
        return torch.equal(given, expected)
    return float((given - expected).abs().max()) <= _TOLERANCE * float(expected.abs().max())


def _pairs(model: nn.Module, batch: Tensor) -> list[tuple[str, str]]:
    """Convolutions called once, and the BatchNorm that takes the output of this one alone."""
    evaluation_mode_(model.requires_grad_(False))  # fusing wants eval mode and no gradients
    convolutions = [x for x in refittable_layers(model) if KINDS[x.kind].axes and not x.turned]
    way = trace(model, Layers(convolutions, 0), batch, needed=())
    norms = list(way.norms.values())
    return [
        (layer, norm)
        for layer, norm in way.norms.items()
        if way.calls[layer] == 1 and norms.count(norm) == 1 and _plain(model.get_submodule(norm))
    ]


def _plain(norm: nn.Module) -> bool:
    return isinstance(norm, _BatchNorm) and norm.track_running_stats and not norm.training


def norm_map(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """(a, c), float64 on the CPU, of a BatchNorm with running statistics in evaluation: x -> a x + c, with
    a = gamma / sqrt(var + eps) and c = beta - a mean.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = torch.rsqrt(norm.running_var.cpu().double() + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.detach().cpu().double()
    shift = -scale * norm.running_mean.cpu().double()
    return scale, shift if norm.bias is None else shift + norm.bias.detach().cpu().double()
