"""Torch-Pruning: whole channels go, so one network is smaller where the others are sparse. It has no recovery.

It is asked for a share of channels; a layer between two pruned ones loses 1 - (1 - ratio)^2 of its weights, so that
ratio is taken. Channels of the stem must go where a shortcut joins it to others; the classifier's outputs never do.
It does not see the language model's positions, which are sliced by hand, nor the widths written in its attention.
"""

from __future__ import annotations

from torch import Tensor, nn
from work import Entry, main


def prune_channels(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    import torch_pruning as tp

    head = [x for x in model.modules() if isinstance(x, nn.Linear)][-1]
    ratio, importance = 1 - (1 - sparsity) ** 0.5, tp.importance.GroupMagnitudeImportance(p=1)
    settings = {"pruning_ratio": ratio, "ignored_layers": [head]}
    pruner = tp.pruner.BasePruner(model, images[0][:1], importance, **settings)
    pruner.step()
    return model


EVERY = ("resnet20", "resnet18", "gpt")
ENTRIES = {"channels by group magnitude": Entry(prune_channels, None, EVERY)}

if __name__ == "__main__":
    main(("torch_pruning",), ("torch", "torch-pruning"), ENTRIES)
