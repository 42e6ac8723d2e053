"""The recipe of `finetune`, what each epoch showed, and what came out."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from safetensors.torch import save as to_bytes
from torch import nn

from repairability._files import write_atomically
from repairability.errors import InputError, unknown
from repairability.models.weights import plain_state
from repairability.provenance import provenance
from repairability.tables import Table, percent

Precision = Literal["float32", "bfloat16"]
PRECISIONS = get_args(Precision)


@dataclass(frozen=True)
class TrainConfig:
    """The recipe of `finetune`; the paper's where it says something.

    rate: the peak of the one-cycle schedule. smoothing: of the labels. seed: of the order, the augmentation, dropout.
    frozen: globs on module names; such a module is frozen with all below it. None: the lower layers (`lower_layers`).
    augment: shift by up to an eighth of the image (4 pixels of 32, reflected) and flip, drawn for each image.
    test_images: how many are looked at after each epoch, drawn by `seed`; they decide nothing.
    precision: of the training passes; bfloat16 (autocast: weights, sums and the tests stay float32) takes about
        half the time on a CPU that multiplies it.
    """

    epochs: int = 5
    rate: float = 0.05
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4
    smoothing: float = 0.0
    seed: int = 0
    frozen: Sequence[str] | None = None
    augment: bool = True
    test_images: int = 2000
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("test_images", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("momentum", "weight_decay", "smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if not 0 < self.rate < math.inf:
            raise InputError(f"rate must be positive, not {self.rate}")
        if isinstance(self.frozen, str):
            raise InputError(
                f"frozen takes a sequence of globs, not the string {self.frozen!r}; write ({self.frozen!r},)"
            )


@dataclass(frozen=True)
class Epoch:
    """One pass: the last learning rate, loss and accuracy on the (augmented) images as they went by, then the test."""

    epoch: int
    rate: float
    train_loss: float
    train_top1: float
    test_loss: float | None
    test_top1: float | None
    test_images: int
    seconds: float


@dataclass(frozen=True)
class TrainResult:
    """A trained copy of a network, its learning curve, and how it came about."""

    model: nn.Module
    curve: Sequence[Epoch]
    config: TrainConfig
    frozen: Sequence[str]  # modules
    data: str  # fingerprint

    def table(self) -> Table:
        def cells(loss: float | None, top1: float | None) -> tuple[str, str]:
            return ("", "") if loss is None or top1 is None else (f"{loss:.4f}", percent(top1))

        columns = ("epoch", "last rate", "train loss", "train top-1", "test loss", "test top-1", "seconds")
        rows = []
        for x in self.curve:
            measured = (*cells(x.train_loss, x.train_top1), *cells(x.test_loss, x.test_top1))
            rows.append((str(x.epoch), f"{x.rate:.2g}", *measured, f"{x.seconds:.1f}"))
        few = len(self.frozen) <= 6
        frozen = ", ".join(self.frozen) if few else f"{len(self.frozen)} modules, {self.frozen[0]} to {self.frozen[-1]}"
        caption = f"tested on {self.curve[-1].test_images:,} images; frozen: {frozen or 'nothing'}"
        return Table(columns, rows, caption=caption)

    def __str__(self) -> str:
        return str(self.table())

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": asdict(self.config),
            "frozen": list(self.frozen),
            "data_fingerprint": self.data,
            "curve": [asdict(epoch) for epoch in self.curve],
            "provenance": provenance(),
        }

    def save(self, path: str | os.PathLike[str], *, half: bool = False) -> None:
        """Write the state dict as safetensors, for `create_model(weights=path)`; `half` rounds to float16."""
        tensors = plain_state(self.model)
        for key, tensor in tensors.items():
            if half and tensor.is_floating_point():
                tensors[key] = tensor.half()
                if not tensors[key].isfinite().all():
                    raise InputError(f"{key} goes beyond the range of float16; store the network in full")
        write_atomically(path, to_bytes(tensors))
