"""llm-compressor: SparseGPT and Wanda through `oneshot`, on the small language model.

`oneshot` takes models of transformers only, and looks up their configuration on the disk: the network is wrapped in
such a model first (`as_pretrained`, not counted as a user's code, since a user of it has one). Convolutions are not
among the layers that its sequential pipeline knows from a network like ResNet, so the others are not tried.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from work import Entry, main


def as_pretrained(model: nn.Module) -> Any:
    """The network inside a transformers' model of its own type, whose configuration is saved where it is looked for."""
    from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

    class Config(PretrainedConfig):  # type: ignore[misc, no-any-unimported]
        model_type = "manual-gpt"

    class Wrapped(PreTrainedModel):  # type: ignore[misc, no-any-unimported]
        config_class = Config
        _no_split_modules = ("Block",)

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.network = model
            self.post_init()

        def forward(self, input_ids: Tensor) -> Tensor:
            logits: Tensor = self.network(input_ids)
            return logits

        def _init_weights(self, module: nn.Module) -> None:
            """They are there."""

    AutoConfig.register(Config.model_type, Config, exist_ok=True)
    folder = tempfile.mkdtemp()
    Config().save_pretrained(folder)
    return Wrapped(Config.from_pretrained(folder)).eval()


def loader(batches: list[Tensor]) -> Any:
    """A batch for each step, as transformers' models take it."""
    from torch.utils.data import DataLoader

    samples = [{"input_ids": batch} for batch in batches]
    return DataLoader(samples, batch_size=None)  # type: ignore[arg-type]


def prune_with_sparsegpt(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from llmcompressor import oneshot
    from llmcompressor.modifiers.pruning import SparseGPTModifier

    recipe = SparseGPTModifier(sparsity=sparsity, targets=["Block"], ignore=["re:.*head"])
    oneshot(model=as_pretrained(model), dataset=loader(images), recipe=recipe)
    return model


def prune_with_wanda(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from llmcompressor import oneshot
    from llmcompressor.modifiers.pruning import WandaPruningModifier

    recipe = WandaPruningModifier(sparsity=sparsity, targets=["Block"], ignore=["re:.*head"])
    oneshot(model=as_pretrained(model), dataset=loader(images), recipe=recipe)
    return model


ENTRIES = {
    "SparseGPT": Entry(prune_with_sparsegpt, None, ("gpt",)),
    "Wanda": Entry(prune_with_wanda, None, ("gpt",)),
}

if __name__ == "__main__":
    main(("llmcompressor", "llmcompressor.modifiers.pruning"), ("torch", "llmcompressor", "transformers"), ENTRIES)
