"""llm-compressor: SparseGPT and Wanda through `oneshot`, each by layer. Of convolutions they take those of 1 x 1 only.

`oneshot` takes models of transformers only, and looks up their configuration on the disk: the network is wrapped in
such a model first (`as_pretrained`, not counted as a user's code, since its users have one).
"""

from __future__ import annotations

import importlib
import tempfile
from typing import Any

from torch import Tensor, nn
from work import Entry, main


def as_pretrained(model: nn.Module) -> Any:
    """The network inside a transformers' model of its own type, whose configuration is saved where it is looked for."""
    transformers: Any = importlib.import_module("transformers")

    class Config(transformers.PretrainedConfig):  # type: ignore[misc]
        model_type = "manual-gpt"

    class Wrapped(transformers.PreTrainedModel):  # type: ignore[misc]
        config_class = Config
        _no_split_modules = sorted({type(x).__name__ for x in model.modules()} & {"Block", "BasicBlock"})

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.network = model
            self.post_init()

        def forward(self, input_ids: Tensor) -> Tensor:
            logits: Tensor = self.network(input_ids)
            return logits

        def _init_weights(self, module: nn.Module) -> None:
            """They are there."""

    transformers.AutoConfig.register(Config.model_type, Config, exist_ok=True)
    folder = tempfile.mkdtemp()
    Config().save_pretrained(folder)
    config = Config()
    config.name_or_path = folder
    return Wrapped(config).eval()


def tokenizer() -> Any:
    """It asks for one wherever it is given data, even data that is tokenized."""
    transformers: Any = importlib.import_module("transformers")
    tokenizers: Any = importlib.import_module("tokenizers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel()))


def loader(batches: list[Tensor]) -> Any:
    """A batch for each step, as transformers' models take it."""
    from torch.utils.data import DataLoader

    samples = [{"input_ids": batch} for batch in batches]
    return DataLoader(samples, batch_size=None)  # type: ignore[arg-type]


def prune_with_sparsegpt(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from llmcompressor import oneshot
    from llmcompressor.modifiers.pruning import SparseGPTModifier

    recipe = SparseGPTModifier(sparsity=sparsity, targets=[f"network.{name}" for name in layers])
    oneshot(model=as_pretrained(model), dataset=loader(images), recipe=recipe, processor=tokenizer())
    return model


def prune_with_wanda(model: nn.Module, layers: list[str], images: list[Tensor], sparsity: float) -> nn.Module:
    from llmcompressor import oneshot
    from llmcompressor.modifiers.pruning import WandaPruningModifier

    recipe = WandaPruningModifier(sparsity=sparsity, targets=[f"network.{name}" for name in layers])
    oneshot(model=as_pretrained(model), dataset=loader(images), recipe=recipe, processor=tokenizer())
    return model


EVERY = ("resnet20", "resnet18", "gpt")
ENTRIES = {
    "SparseGPT": Entry(prune_with_sparsegpt, None, EVERY),
    "Wanda": Entry(prune_with_wanda, None, EVERY),
}

if __name__ == "__main__":
    main(("llmcompressor", "llmcompressor.modifiers.pruning"), ("torch", "llmcompressor", "transformers"), ENTRIES)
