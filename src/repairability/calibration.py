"""CalibrationSet: the unlabeled samples everything is measured on, fixed and fingerprinted."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as trees

from repairability._torch import evaluating, generator_of, take_threads, unwrapped
from repairability.errors import InputError
from repairability.network.batches import (
    PROBE,
    Batch,
    Forward,
    arguments,
    check_pixels,
    described,
    is_images,
    leaves,
    not_for_ever,
    plain,
    run,
    sample_count,
    taken,
    to_model,
)
from repairability.network.samples import Samples

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
    """Samples in a fixed order: the first `count` for the statistics (where there are fewer, all of them), those after
    them for BatchNorm recalibration.

    `samples` is a tensor [n, ...], or batches of any form (see `read`). `batch_size` is how many run through the model
    at once; it changes memory and speed, not what is measured. `forward` is how a batch goes into the model, where
    `network.batches.run` does not guess it.
    """

    samples: Samples | Tensor
    count: int = COUNT
    batch_size: int = COUNT
    forward: Forward | None = None

    def __post_init__(self) -> None:
        take_threads()
        if isinstance(self.samples, Tensor):
            object.__setattr__(self, "samples", Samples((self.samples.detach().cpu(),)))
        if self.count < 1 or self.batch_size < 1:
            raise InputError(f"count and batch_size must be at least 1, not {self.count} and {self.batch_size}")
        before = 0
        for batch in self.held.batches:
            if self.forward is None:  # a forward of one's own may scale
                check_pixels(batch)
            _check(batch, before)
            before += sample_count(batch)
        if not before:
            raise InputError("no images were given")
        if before < self.count:
            words = f"the statistics take {self.count} images; they take the {before} that there are"
            warnings.warn(words, stacklevel=3)
            object.__setattr__(self, "count", before)

    @classmethod
    def read(
        cls,
        source: Images,
        *,
        count: int = COUNT,
        batch_size: int = COUNT,
        seed: int | None = None,
        most: int | None = None,
        forward: Forward | None = None,
        model: nn.Module | None = None,
    ) -> CalibrationSet:
        """Take samples from one batch (a tensor, tuple or mapping), or from a DataLoader, a list or any iterable of
        batches. A batch is what the model takes: a tensor, a tuple, a mapping, a list of images. A tuple of tensors of
        one form (as `images.split(128)`) is many batches, unless the model takes several inputs.

        At most `most` samples are kept (default: the statistics' and BatchNorm's). Without a seed they are the first
        ones, and no more of an iterable is read than needed; with a seed they are drawn from all of the source.
        With a `model` (and no `forward`) only what it takes is kept of a batch: no labels.
        """
        if isinstance(source, CalibrationSet):
            return source if forward is None else replace(source, forward=forward)
        take_threads()
        limit = images_for(count) if most is None else most
        one = isinstance(source, (Tensor, np.ndarray, Mapping)) or (
            isinstance(source, tuple) and not _are_batches(source, None if forward else model)
        )
        if isinstance(source, (Tensor, np.ndarray)) and source.ndim < 2:
            raise InputError(f"images must be a batch [n, ...], not a tensor of shape {tuple(source.shape)}")
        batches = _read([source] if one else source, limit if seed is None else None)
        if model is not None and forward is None:
            batches = (taken(unwrapped(model), batch) for batch in batches)
        samples = Samples.of(batches)
        if seed is not None:
            order = torch.randperm(len(samples), generator=generator_of(seed))
            samples = samples.drawn(order[:limit].tolist())
        return cls(samples[:limit], count, batch_size, forward)

    @property
    def held(self) -> Samples:
        assert isinstance(self.samples, Samples)
        return self.samples

    def __len__(self) -> int:
        return len(self.held)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every tensor, its shape and type, and how many samples serve the statistics."""
        digest = hashlib.sha256()
        for batch in self.held.batches:
            values, structure = trees.tree_flatten(batch)
            if not isinstance(batch, Tensor):
                digest.update(str(structure).encode())
            for value in values:
                if isinstance(value, Tensor):
                    digest.update(f"{tuple(value.shape)} {value.dtype} {self.count}".encode())
                    digest.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
                else:
                    digest.update(repr(value).encode())
        return digest.hexdigest()[:16]

    def run(self, network: nn.Module, batch: Batch) -> Any:
        """One forward pass of a batch of this set."""
        return run(network, batch, self.forward)

    def few_outputs(self, model: nn.Module) -> Any:
        """What a network makes of the first few samples; it is only read."""
        with evaluating(model) as network:
            return self.run(network, next(self.first(network, PROBE, PROBE)))

    def batches(self, model: nn.Module) -> Iterator[Batch]:
        """The statistics' samples, on the model's device and in its dtype."""
        return self.first(model, self.count, self.batch_size)

    def first(self, model: nn.Module, count: int, batch_size: int) -> Iterator[Batch]:
        """The first `count` samples, or as many as there are, whatever else they serve for."""
        for batch in self.held[:count].split(batch_size):
            yield to_model(batch, model)

    def split(self, held_out: int = HELD_OUT) -> tuple[CalibrationSet, Samples]:
        """A set without its last samples, and those, at most a third of what is beside the statistics' samples."""
        held = min(held_out, (len(self) - self.count) // 3)
        if held < LEAST_HELD_OUT:
            raise InputError(
                f"comparing networks without labels holds images out: {len(self)} leave {max(0, held)} beside the "
                f"{self.count} of the statistics; give {self.count + 3 * LEAST_HELD_OUT} or more"
            )
        return replace(self, samples=self.held[: len(self) - held]), self.held[len(self) - held :]

    @property
    def batch_count(self) -> int:
        return sum(1 for _ in self.held[: self.count].split(self.batch_size))

    @property
    def recalibration_samples(self) -> Samples:
        """The samples after the statistics' ones; where these are less than a batch, all: a handful would ruin what it
        is recalibrated on.
        """
        return self.held[self.count :] if len(self) - self.count >= BN_BATCH_SIZE else self.held

    def recalibration(self, model: nn.Module, batches: int = BN_BATCHES, size: int = BN_BATCH_SIZE) -> Iterator[Batch]:
        """Exactly `batches` batches of `size` samples, cycling where there are fewer."""
        for batch in self.recalibration_samples.cycled(batches, size):
            yield to_model(batch, model)

    def recalibration_cycles(self, batches: int = BN_BATCHES, size: int = BN_BATCH_SIZE) -> bool:
        """Whether BatchNorm recalibration sees samples more than once."""
        return len(self.recalibration_samples) < batches * size


Images = Batch | Iterable[Batch] | CalibrationSet
"""What public functions take: one batch, a DataLoader, any iterable of batches, or a CalibrationSet."""


def _are_batches(items: tuple[Any, ...], model: nn.Module | None) -> bool:
    """Whether a tuple in the place of images is many batches, and not one of several inputs."""
    tensors = all(isinstance(x, Tensor) and x.dim() > 1 for x in items)
    alike = tensors and len({(x.shape[1:], x.dtype) for x in items}) == 1
    return alike and (model is None or len(arguments(unwrapped(model), items)[0]) < 2)


def _check(batch: Batch, before: int) -> None:
    """Refuse what nothing can be measured on: images that are all the same, nan and inf."""
    for leaf in leaves(batch):
        if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            rows = leaf.isfinite().flatten(1).all(1) if leaf.dim() > 1 else leaf.isfinite()
            raise InputError(f"image {before + int(rows.int().argmin())} holds nan or inf")
    if isinstance(batch, Tensor) and len(batch) > 1 and batch.is_floating_point() and bool((batch == batch[:1]).all()):
        raise InputError(f"the {len(batch)} images are all the same: nothing can be measured on them")


def _read(source: Iterable[Batch], limit: int | None) -> Iterator[Batch]:
    if isinstance(source, (str, bytes)) or not hasattr(source, "__iter__"):
        raise InputError(f"images must be a tensor or an iterable of batches, not {type(source).__name__}")
    taken, images = 0, None
    for batch in not_for_ever(map(plain, source)):
        if isinstance(batch, list):  # images, or what a loader collated; the first, which is no rest, tells
            images = is_images(batch) if images is None else images
            batch = batch if images else tuple(batch)
        if not leaves(batch) or (isinstance(batch, Tensor) and batch.dim() < 2):
            got = f"a tensor of {described(batch)}" if isinstance(batch, Tensor) else described(batch)
            raise InputError(f"images must come in batches: tensors [n, ...], or trees of them, not {got}")
        if isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[1], int):
            raise InputError(
                f"the items {described(batch)} look like single samples with a label; "
                "give batches: torch.utils.data.DataLoader(dataset, batch_size=64)"
            )
        yield batch
        taken += sample_count(batch)
        if limit is not None and taken >= limit:
            break
    if not taken:
        raise InputError("no images: the iterable is empty (was it read to its end before?)")
