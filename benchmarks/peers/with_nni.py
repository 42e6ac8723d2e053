"""NNI: its LevelPruner, by layer or with one threshold for a group of layers. It has no recovery but training.

Its masks act while the model is wrapped; they are multiplied in by hand when it is unwrapped.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from work import Entry, main


def prune_by_layer(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from nni.compression.pruning import LevelPruner

    pruner = LevelPruner(model, [{"op_names": layers, "sparse_ratio": sparsity, "target_names": ["weight"]}])
    _, masks = pruner.compress()
    pruner.unwrap_model()
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(f"{name}.weight").mul_(mask["weight"])
    return model


def prune_globally(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from nni.compression.pruning import LevelPruner

    group = {"target_settings": {"weight": {"sparse_ratio": sparsity, "global_group_id": 0}}}
    pruner = LevelPruner(model, [{"op_names": layers, "target_names": ["weight"], **group}])
    _, masks = pruner.compress()
    pruner.unwrap_model()
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(f"{name}.weight").mul_(mask["weight"])
    return model


EVERY = ("resnet20", "resnet18", "gpt")
ENTRIES = {
    "LevelPruner, global": Entry(prune_globally, lambda model, layers, s: prune_globally(model, layers, [], s), EVERY),
    "LevelPruner, by layer": Entry(prune_by_layer, lambda model, layers, s: prune_by_layer(model, layers, [], s), ()),
}

if __name__ == "__main__":
    main(("nni.compression.pruning",), ("torch", "nni"), ENTRIES)
