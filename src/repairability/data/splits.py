"""Split and Data: images by index, as the network wants them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from repairability._torch import generator_of
from repairability.errors import InputError, check_whole

Normal = tuple[Sequence[float], Sequence[float]]
"""Mean and deviation of pixels in [0, 1], per channel."""

IMAGENET: Normal = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""What all our networks take."""

UNLABELED = -1
"""In place of a label where nobody gave one."""


@dataclass(frozen=True)
class Split:
    """A part of a data set: `read(indices)` gives pixels [k, C, H, W] in [0, 1], `labels` [n] stay apart, `UNLABELED`
    where there are none; `content` yields the bytes that the pixels come from.
    """

    labels: Tensor
    read: Callable[[Sequence[int]], Tensor]
    mean: Sequence[float]
    std: Sequence[float]
    image_size: int | None = None
    content: Callable[[], Iterator[bytes | memoryview]] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labeled(self) -> bool:
        return not bool((self.labels == UNLABELED).all())

    def images(self, indices: Sequence[int]) -> Tensor:
        """Resized and normalised; no label is read."""
        pixels = self.read(indices)
        side = self.image_size
        if side is not None and pixels.shape[-2:] != (side, side):
            pixels = F.interpolate(pixels, (side, side), mode="bilinear", antialias=True, align_corners=False)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (pixels - mean) / std

    def batches(self, size: int = 256, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Labeled batches in order, of the first `limit` images."""
        if not self.labeled:
            raise InputError("these images have no labels, and labeled batches were asked for")
        starts = range(0, len(self), size)
        for start, images in zip(starts, self.image_batches(size, limit), strict=False):
            yield images, self.labels[start : start + len(images)]

    def image_batches(self, size: int = 256, limit: int | None = None) -> Iterator[Tensor]:
        """The same without their labels, which may be none."""
        order = range(len(self))[: None if limit is None else check_whole(limit, "limit", 0)]
        for start in range(0, len(order), size):
            yield self.images(list(order[start : start + size]))


@dataclass(frozen=True)
class Data:
    """A data set: training part (calibrate on it, unlabeled) and test part (evaluate on it, only). Of images without
    labels, which have no classes, both are all of them.
    """

    name: str
    classes: int
    train: Split
    test: Split

    def check_labels(self, what: str) -> None:
        """Before any work is done: images alone serve to prune, not for this."""
        if not (self.train.labeled and self.test.labeled):
            raise InputError(f"{what} reads labels, and {self.name} has images alone: give data with classes too")

    @cached_property
    def fingerprint(self) -> str:
        """A hash of pixels (or files), labels, size and normalisation; the same wherever the data lies."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            if split.content is None:
                raise InputError(f"{self.name} does not say what its pixels come from: give its splits a `content`")
            digest.update(repr((tuple(split.mean), tuple(split.std), split.image_size)).encode())
            digest.update(split.labels.numpy().tobytes())
            for part in split.content():
                digest.update(part)
        return digest.hexdigest()[:16]

    def unlabeled(self, count: int, seed: int) -> Tensor:
        """`count` training images drawn by `seed`; their labels are not read."""
        if check_whole(count, "the count of images", 1) > len(self.train):
            raise InputError(f"{self.name} has {len(self.train)} training images, {count} were asked for")
        order = torch.randperm(len(self.train), generator=generator_of(seed))
        return self.train.images(order[:count].tolist())


def unlabeled(name: str, images: Split) -> Data:
    return Data(name, 0, images, images)


def from_array(images: Tensor, labels: Tensor, normal: Normal, size: int | None, white: float = 255) -> Split:
    """A split of pixels [n, C, H, W] held in memory, from 0 to `white`."""

    def read(indices: Sequence[int]) -> Tensor:
        return images[torch.as_tensor(indices)].float() / white

    def content() -> Iterator[bytes | memoryview]:
        yield str((images.dtype, tuple(images.shape))).encode()
        yield images.contiguous().numpy().data

    return Split(labels.long(), read, *normal, size, content)
