"""repairability: its recipes on the images, and the rules that need no data by themselves. On the language model it is
told to prune linear layers, by its own allocation or uniformly, as the others do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from work import Entry, main


def prune_strong(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    import repairability as rp

    return rp.prune(model, images, sparsity=sparsity).model


def prune_fast(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    import repairability as rp

    return rp.prune(model, images, sparsity=sparsity, recipe="fast").model


def prune_paper(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    import repairability as rp

    return rp.prune(model, images, sparsity=sparsity, recipe="paper").model


def prune_linear_layers(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    import repairability as rp

    return rp.prune(model, images, sparsity=sparsity, config=rp.PruneConfig(types=("linear",))).model


def prune_uniformly(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    import repairability as rp

    config = rp.PruneConfig(types=("linear",))
    return rp.prune(model, images, sparsity=sparsity, rule="uniform", config=config).model


def prune_linear_layers_fast(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    import repairability as rp

    return rp.prune(model, images, sparsity=sparsity, recipe="fast", config=rp.PruneConfig(types=("linear",))).model


def prune_linear_layers_paper(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    import repairability as rp

    return rp.prune(model, images, sparsity=sparsity, recipe="paper", config=rp.PruneConfig(types=("linear",))).model


def masks_of(rule: str) -> Callable[[nn.Module, list[str], float], object]:
    def masks(model: nn.Module, layers: list[str], sparsity: float) -> object:
        import repairability as rp

        options: dict[str, Any] = {"over": "prunable"} if rule == "global" else {}
        return rp.make_masks(model, rp.allocate(model, sparsity=sparsity, rule=rule, **options))

    return masks


def no_pruning(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    return model


ENTRIES = {
    "strong": Entry(prune_strong),
    "fast": Entry(prune_fast, masks_of("lamp")),
    "paper": Entry(prune_paper),
    "global": Entry(no_pruning, masks_of("global"), ()),
    "uniform": Entry(no_pruning, masks_of("uniform"), ()),
    "erk": Entry(no_pruning, masks_of("erk"), ()),
    "strong, linear layers": Entry(prune_linear_layers, None, ("gpt",)),
    "fast, linear layers": Entry(prune_linear_layers_fast, None, ("gpt",)),
    "paper, linear layers": Entry(prune_linear_layers_paper, None, ("gpt",)),
    "strong, uniform": Entry(prune_uniformly, None, ("gpt",)),
}

if __name__ == "__main__":
    main(("repairability", "repairability.pruning", "repairability.rules"), ("torch", "repairability"), ENTRIES)
