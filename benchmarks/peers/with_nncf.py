"""NNCF: `nncf.prune` by magnitude, `nncf.batch_norm_adaptation` on unlabeled images, the masks made permanent.

Its global mode divides each layer's weights by their norm. Layers are left out by the names of their weights. It moves
a tenth of the way to each batch's statistics, so it is given 20 batches, the images again and again: as many as our
own `fast` and `paper` take. The language model has no BatchNorm to adapt; its embeddings are left out, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from work import Entry, main


def prune_globally(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    import nncf

    mode = nncf.PruneMode.UNSTRUCTURED_MAGNITUDE_GLOBAL
    others = [f"{n}.weight" for n, x in model.named_modules() if isinstance(x, nn.Conv2d | nn.Linear)]
    ignored = nncf.IgnoredScope(names=[x for x in others if x.removesuffix(".weight") not in layers])
    pruned = nncf.prune(model, mode, ratio=sparsity, ignored_scope=ignored, examples_inputs=images[0][:1])
    adapted = nncf.batch_norm_adaptation(pruned, nncf.Dataset((images * 20)[:20]))
    return nncf.strip(adapted, do_copy=False, strip_format=nncf.StripFormat.IN_PLACE)  # type: ignore[no-any-return]


def prune_by_layer(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    import nncf

    mode = nncf.PruneMode.UNSTRUCTURED_MAGNITUDE_LOCAL
    others = [f"{n}.weight" for n, x in model.named_modules() if isinstance(x, nn.Conv2d | nn.Linear)]
    ignored = nncf.IgnoredScope(names=[x for x in others if x.removesuffix(".weight") not in layers])
    pruned = nncf.prune(model, mode, ratio=sparsity, ignored_scope=ignored, examples_inputs=images[0][:1])
    adapted = nncf.batch_norm_adaptation(pruned, nncf.Dataset((images * 20)[:20]))
    return nncf.strip(adapted, do_copy=False, strip_format=nncf.StripFormat.IN_PLACE)  # type: ignore[no-any-return]


def masks_of(name: str) -> Any:
    def masks(model: nn.Module, layers: list[str], sparsity: float) -> object:
        import nncf

        others = [f"{n}.weight" for n, x in model.named_modules() if isinstance(x, nn.Conv2d | nn.Linear)]
        ignored = nncf.IgnoredScope(names=[x for x in others if x.removesuffix(".weight") not in layers])
        example = torch.zeros(1, 3, 32, 32)  # it traces the network: small, so that this costs little
        return nncf.prune(model, nncf.PruneMode[name], ratio=sparsity, ignored_scope=ignored, examples_inputs=example)

    return masks


def prune_linear_globally(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    import nncf

    mode = nncf.PruneMode.UNSTRUCTURED_MAGNITUDE_GLOBAL
    others = [f"{n}.weight" for n, x in model.named_modules() if isinstance(x, nn.Embedding | nn.Linear)]
    ignored = nncf.IgnoredScope(names=[x for x in others if x.removesuffix(".weight") not in layers])
    pruned = nncf.prune(model, mode, ratio=sparsity, ignored_scope=ignored, examples_inputs=images[0][:1])
    return nncf.strip(pruned, do_copy=False, strip_format=nncf.StripFormat.IN_PLACE)  # type: ignore[no-any-return]


ENTRIES = {
    "global, BatchNorm adapted": Entry(prune_globally, masks_of("UNSTRUCTURED_MAGNITUDE_GLOBAL")),
    "by layer, BatchNorm adapted": Entry(prune_by_layer, masks_of("UNSTRUCTURED_MAGNITUDE_LOCAL")),
    "global": Entry(prune_linear_globally, None, ("gpt",)),
}

if __name__ == "__main__":
    main(("nncf", "nncf.torch"), ("torch", "nncf"), ENTRIES)
