"""torch.nn.utils.prune: one threshold on all layers, or a share of each. It has no recovery."""

from __future__ import annotations

from torch import Tensor, nn
from work import Entry, main


def prune_globally(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from torch.nn.utils import prune

    pairs = [(model.get_submodule(name), "weight") for name in layers]
    prune.global_unstructured(pairs, pruning_method=prune.L1Unstructured, amount=sparsity)
    for module, name in pairs:
        prune.remove(module, name)  # type: ignore[no-untyped-call]
    return model


def prune_by_layer(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from torch.nn.utils import prune

    for name in layers:
        prune.l1_unstructured(model.get_submodule(name), "weight", amount=sparsity)  # type: ignore[no-untyped-call]
        prune.remove(model.get_submodule(name), "weight")  # type: ignore[no-untyped-call]
    return model


EVERY = ("resnet20", "resnet18", "gpt")
ENTRIES = {
    "global L1": Entry(prune_globally, lambda model, layers, s: prune_globally(model, layers, [], s), EVERY),
    "L1 by layer": Entry(prune_by_layer, lambda model, layers, s: prune_by_layer(model, layers, [], s), ("gpt",)),
}

if __name__ == "__main__":
    main(("torch.nn.utils.prune",), ("torch",), ENTRIES)
