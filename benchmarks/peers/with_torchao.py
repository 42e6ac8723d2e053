"""torchao: its Wanda, and its sparsifier by the weights' norm, each by layer. It has no recovery.

Its masks are matrices, so it fails at convolutions.
"""

from __future__ import annotations

from torch import Tensor, nn
from work import Entry, main


def prune_by_activation(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from torchao.sparsity import WandaSparsifier

    sparsifier = WandaSparsifier(sparsity_level=sparsity)
    sparsifier.prepare(model, [{"tensor_fqn": f"{name}.weight"} for name in layers])
    for batch in images:
        model(batch)
    sparsifier.step()
    sparsifier.squash_mask()
    return model


def prune_by_norm(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from torchao.prototype.sparsity import WeightNormSparsifier

    sparsifier = WeightNormSparsifier(sparsity_level=sparsity, sparse_block_shape=(1, 1), zeros_per_block=1)
    sparsifier.prepare(model, [{"tensor_fqn": f"{name}.weight"} for name in layers])
    sparsifier.step()
    sparsifier.squash_mask()
    return model


EVERY = ("resnet20", "resnet18", "gpt")
ENTRIES = {
    "WandaSparsifier": Entry(prune_by_activation, None, EVERY),
    "WeightNormSparsifier": Entry(prune_by_norm, lambda model, layers, s: prune_by_norm(model, layers, [], s), EVERY),
}

if __name__ == "__main__":
    main(("torchao.sparsity", "torchao.prototype.sparsity"), ("torch", "torchao"), ENTRIES)
