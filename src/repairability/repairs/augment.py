"""Augmentations for `OutputMatching`: other images like those at hand; the dense network says what they should give."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from repairability.errors import InputError
from repairability.network.batches import Batch, described
from repairability.training.steps import augmented

Augment = Callable[[Batch, torch.Generator], Batch]
"""(batch, generator) -> another batch like it, drawn from the generator alone."""


def flips(batch: Batch, generator: torch.Generator) -> Tensor:
    """Half of the images [n, C, H, W] mirrored, left to right."""
    images = _images(batch, "flips")
    mirrored = torch.randint(0, 2, (len(images), 1, 1, 1), generator=generator).bool()
    return torch.where(mirrored, images.flip(3), images)


def crops(batch: Batch, generator: torch.Generator) -> Tensor:
    """Flips, and each image shifted by up to an eighth of its size either way, reflected at the border."""
    return augmented(_images(batch, "crops"), generator)


def _images(batch: Batch, what: str) -> Tensor:
    if not isinstance(batch, Tensor) or batch.dim() != 4:
        raise InputError(f"{what} are of images [n, C, H, W], not of a batch of {described(batch)}")
    return batch
