"""CalibrationSet: the unlabeled images everything is measured on, fixed and fingerprinted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from repairability._torch import to_model
from repairability.errors import InputError

COUNT = 128
"""How many images the statistics are measured on, as in the paper."""

BN_BATCHES, BN_BATCH_SIZE = 20, 128
"""BatchNorm recalibration, as in the paper."""

HELD_OUT = 1280
"""Unlabeled images that compare networks and serve nothing else; 512 do not tell apart what differs by a point."""

LEAST_HELD_OUT = 30


def images_for(count: int, held_out: int = 0) -> int:
    """How many images there is a use for: the statistics', BatchNorm's, and those that are held out."""
    return count + BN_BATCHES * BN_BATCH_SIZE + held_out


@dataclass(frozen=True, eq=False)
class CalibrationSet:
    """Images in a fixed order: the first `count` for the statistics, those after them for BatchNorm recalibration.

    `batch_size` is how many run through the model at once; it changes memory and speed, not what is measured.
    """

    images: Tensor  # [n, ...], floating point, on the CPU
    count: int = COUNT
    batch_size: int = COUNT

    def __post_init__(self) -> None:
        if self.count < 1 or self.batch_size < 1:
            raise InputError(f"count and batch_size must be at least 1, not {self.count} and {self.batch_size}")
        if not self.images.is_floating_point():
            raise InputError(
                f"images must be floating point, normalised as the model wants them, not {self.images.dtype}"
            )
        if len(self.images) < self.count:
            raise InputError(
                f"too few images: {len(self.images)} were given, the statistics take {self.count}; "
                f"give more, or say CalibrationSet.read(images, count={max(1, len(self.images))})"
            )
        finite = torch.isfinite(self.images.flatten(1)).all(dim=1) if self.images.numel() else torch.ones(1)
        if not finite.all():
            raise InputError(f"image {int(finite.int().argmin())} holds nan or inf")

    @classmethod
    def read(
        cls,
        source: Images,
        *,
        count: int = COUNT,
        batch_size: int = COUNT,
        seed: int | None = None,
        most: int | None = None,
    ) -> CalibrationSet:
        """Take images from a tensor, a DataLoader or any iterable of batches (of a tuple or dict, its first item).

        At most `most` images are kept (default: the statistics' and BatchNorm's). Without a seed they are the first
        ones, and no more of an iterable is read than needed; with a seed they are drawn from all of the source.
        """
        if isinstance(source, CalibrationSet):
            return source
        limit = images_for(count) if most is None else most
        images = source if isinstance(source, Tensor) else _collect(source, limit if seed is None else None)
        if images.dim() < 2:
            raise InputError(f"images must be a batch [n, ...], not a tensor of shape {tuple(images.shape)}")
        if seed is not None:
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
            images = images[order[:limit].to(images.device)]
        return cls(images[:limit].detach().cpu(), count, batch_size)

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the images, their shape and type, and how many serve the statistics."""
        digest = hashlib.sha256(f"{tuple(self.images.shape)} {self.images.dtype} {self.count}".encode())
        digest.update(self.images.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    def batches(self, model: nn.Module) -> Iterator[Tensor]:
        """The statistics' images, on the model's device and in its dtype."""
        for batch in self.images[: self.count].split(self.batch_size):  # type: ignore[no-untyped-call]
            yield to_model(batch, model)

    def first(self, model: nn.Module, count: int, batch_size: int) -> Iterator[Tensor]:
        """The first `count` images, or as many as there are, whatever else they serve for."""
        for batch in self.images[:count].split(batch_size):  # type: ignore[no-untyped-call]
            yield to_model(batch, model)

    def split(self, held_out: int = HELD_OUT) -> tuple[CalibrationSet, Tensor]:
        """A set without its last images, and those, at most a third of what is beside the statistics' images."""
        held = min(held_out, (len(self) - self.count) // 3)
        if held < LEAST_HELD_OUT:
            raise InputError(
                f"comparing networks without labels holds images out: {len(self)} leave {max(0, held)} beside the "
                f"{self.count} of the statistics; give {self.count + 3 * LEAST_HELD_OUT} or more"
            )
        return CalibrationSet(self.images[:-held], self.count, self.batch_size), self.images[-held:]

    @property
    def batch_count(self) -> int:
        return -(-self.count // self.batch_size)

    @property
    def recalibration_images(self) -> Tensor:
        """The images after the statistics' ones; where there are none, all."""
        return self.images[self.count :] if len(self.images) > self.count else self.images

    def recalibration(self, model: nn.Module, batches: int = BN_BATCHES, size: int = BN_BATCH_SIZE) -> Iterator[Tensor]:
        """Exactly `batches` batches of `size` images, cycling where there are fewer."""
        images = self.recalibration_images
        for i in range(batches):
            index = torch.arange(i * size, (i + 1) * size) % len(images)
            yield to_model(images[index], model)

    def recalibration_cycles(self, batches: int = BN_BATCHES, size: int = BN_BATCH_SIZE) -> bool:
        """Whether BatchNorm recalibration sees images more than once."""
        return len(self.recalibration_images) < batches * size


Images = Tensor | Iterable[Any] | CalibrationSet
"""What public functions take: a tensor, a DataLoader, any iterable of batches, or a CalibrationSet."""


def _collect(source: Iterable[Any], limit: int | None) -> Tensor:
    if isinstance(source, (str, bytes)) or not hasattr(source, "__iter__"):
        raise InputError(f"images must be a tensor or an iterable of batches, not {type(source).__name__}")
    batches: list[Tensor] = []
    taken = 0
    for item in source:
        batch = _first_item(item)
        if batches and batch.shape[1:] != batches[0].shape[1:]:
            raise InputError(f"images of different shapes: {tuple(batches[0].shape[1:])} and {tuple(batch.shape[1:])}")
        batches.append(batch.detach().cpu())
        taken += len(batch)
        if limit is not None and taken >= limit:
            break
    if not taken:
        raise InputError("no images: the iterable is empty (was it read to its end before?)")
    return torch.cat(batches)


def _first_item(item: Any) -> Tensor:
    if isinstance(item, dict):
        item = next(iter(item.values()), None)
    while isinstance(item, (tuple, list)) and item:
        item = item[0]
    if not isinstance(item, Tensor) or item.dim() < 2:
        got = f"a tensor of shape {tuple(item.shape)}" if isinstance(item, Tensor) else type(item).__name__
        raise InputError(f"images must come in batches: tensors [n, ...] or tuples that begin with one, not {got}")
    return item
