"""fasterai: its Sparsifier on convolutions. It has no recovery but training (its callbacks of fastai's Learner).

A global threshold cannot leave out a convolution: there the stem is pruned, too. By layer it takes names.
On the language model it is told to prune linear layers: a global threshold prunes its head, too. Its Wanda fails there:
it looks for a layer's inputs in the second dimension, which is a text's length.
"""

from __future__ import annotations

from torch import Tensor, nn
from work import Entry, main


def prune_globally(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from fasterai.core.criteria import large_final
    from fasterai.sparse.sparsifier import Sparsifier

    sparsifier = Sparsifier(model, "weight", "global", large_final, layer_type=nn.Conv2d)
    sparsifier.sparsify_model(sparsity)
    sparsifier._clean_buffers()
    return model


def prune_by_layer(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from fasterai.core.criteria import large_final
    from fasterai.sparse.sparsifier import Sparsifier

    sparsifier = Sparsifier(model, "weight", "local", large_final, layer_type=nn.Conv2d)
    sparsifier.sparsify_model(dict.fromkeys(layers, sparsity))
    sparsifier._clean_buffers()
    return model


def prune_by_activation(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from fasterai.core.criteria import wanda
    from fasterai.sparse.sparsifier import Sparsifier

    sparsifier = Sparsifier(model, "weight", "local", wanda, layer_type=nn.Conv2d, data=images)
    sparsifier.sparsify_model(dict.fromkeys(layers, sparsity))
    sparsifier._clean_buffers()
    return model


def prune_linear_globally(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from fasterai.core.criteria import large_final
    from fasterai.sparse.sparsifier import Sparsifier

    sparsifier = Sparsifier(model, "weight", "global", large_final, layer_type=nn.Linear)
    sparsifier.sparsify_model(sparsity)
    sparsifier._clean_buffers()
    return model


def prune_linear_by_activation(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from fasterai.core.criteria import wanda
    from fasterai.sparse.sparsifier import Sparsifier

    sparsifier = Sparsifier(model, "weight", "local", wanda, layer_type=nn.Linear, data=images)
    sparsifier.sparsify_model(dict.fromkeys(layers, sparsity))
    sparsifier._clean_buffers()
    return model


ENTRIES = {
    "large_final, global": Entry(prune_globally, lambda model, layers, s: prune_globally(model, layers, [], s)),
    "large_final, by layer": Entry(prune_by_layer, lambda model, layers, s: prune_by_layer(model, layers, [], s), ()),
    "wanda, by layer": Entry(prune_by_activation),
    "large_final, global, linear layers": Entry(prune_linear_globally, None, ("gpt",)),
    "wanda, by layer, linear layers": Entry(prune_linear_by_activation, None, ("gpt",)),
}

if __name__ == "__main__":
    main(("fasterai.core.criteria", "fasterai.sparse.sparsifier"), ("torch", "fasterai", "fastai"), ENTRIES)
