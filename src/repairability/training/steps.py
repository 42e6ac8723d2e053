"""One step and its surroundings: the augmentation, SGD."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repairability.errors import InputError
from repairability.evaluation import check_labels
from repairability.network.batches import called
from repairability.training.recipe import TrainConfig

PLAIN = TrainConfig()


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image [n, C, H, W] shifted by up to an eighth of its size either way, reflected at the border, and flipped
    in half of the cases. The result is channels-last.
    """
    n, _, height, width = images.shape

    def indices(size: int) -> Tensor:  # [n, size]
        shifts = torch.randint(-(size // 8), size // 8 + 1, (n, 1), generator=generator)
        last = size - 1
        return last - (last - (torch.arange(size) + shifts).abs()).abs()

    rows, columns = indices(height), indices(width)
    flips = torch.randint(0, 2, (n, 1), generator=generator).bool()
    columns = torch.where(flips, columns.flip(1), columns)
    picked = images[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # [n, H, W, C]
    return picked.permute(0, 3, 1, 2)


def sgd(model: nn.Module, rate: float, momentum: float = 0.9, weight_decay: float = 5e-4) -> torch.optim.SGD:
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not weights:
        raise InputError(f"nothing is left to train in {type(model).__name__}: every weight is frozen")
    # fused: one pass over a weight, its gradient and its momentum instead of four; a step of VGG16 spent half on them
    return torch.optim.SGD(
        weights, lr=rate, momentum=momentum, weight_decay=weight_decay, nesterov=momentum > 0, fused=True
    )


def step_(
    model: nn.Module, images: Tensor, labels: Tensor, optimizer: torch.optim.SGD, config: TrainConfig = PLAIN
) -> tuple[float, int]:
    """One step down the cross-entropy: its mean over the batch before the step, and how many predictions were right."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
        logits = called(model, images)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"{type(model).__name__} must put out [n, classes] to be trained, not {shape}")
    labels = check_labels(labels, logits)
    loss = F.cross_entropy(logits.float(), labels, label_smoothing=config.smoothing)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach()), int((logits.argmax(1) == labels).sum())
