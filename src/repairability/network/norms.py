"""The normalisations of a network, by what a repair can do with them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from repairability._torch import batch_norms


@dataclass(frozen=True)
class Norms:
    """BatchNorm layers whose running statistics can be learned anew, and all others: those of frozen statistics, those
    that take each batch's own, and those that normalise each sample by itself (by class).
    """

    learned: int
    frozen: int
    of_each_batch: int
    of_each_sample: dict[str, int]

    @property
    def others(self) -> str:
        """What there is besides BatchNorm with running statistics, in words; empty where there is nothing."""
        words = []
        if self.frozen:
            words.append(f"{self.frozen} frozen BatchNorm")
        if self.of_each_batch:
            words.append(f"{self.of_each_batch} BatchNorm without running statistics")
        words += [f"{count} {name}" for name, count in self.of_each_sample.items()]
        return ", ".join(words)


def norms_of(model: nn.Module) -> Norms:
    """Counted by class; a class of somebody else's is known by its name, as FrozenBatchNorm2d or RMSNorm."""
    learned = batch_norms(model)
    frozen = of_each_batch = 0
    of_each_sample: Counter[str] = Counter()
    for name, module in model.named_modules():
        kind = type(module).__name__
        if name in learned or "Norm" not in kind or next(module.children(), None) is not None:
            continue
        if isinstance(module, _BatchNorm):
            of_each_batch += 1
        elif "Frozen" in kind:
            frozen += 1
        elif kind.endswith(("Norm", "Norm1d", "Norm2d", "Norm3d")):
            of_each_sample[kind] += 1
    return Norms(len(learned), frozen, of_each_batch, dict(of_each_sample))
