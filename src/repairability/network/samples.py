"""Samples in a fixed order, held as batches of any form: counted, cut, joined, cycled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repairability.network.batches import Batch, flat, is_row, sample_count, unflat


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples in a fixed order, held as batches: neighbours of one form are one long batch, which is cut as one likes;
    batches that differ in form (sequences of several lengths) stay apart.

    In a batch every tensor of the length of the first is one value for each sample; any other belongs to all of them.
    """

    batches: tuple[Batch, ...]

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> Samples:
        groups: list[list[Batch]] = []
        for batch in batches:
            if groups and _form(groups[-1][0]) == _form(batch):
                groups[-1].append(batch)
            else:
                groups.append([batch])
        return cls(tuple(_joined(group) for group in groups))

    def __len__(self) -> int:
        return sum(map(sample_count, self.batches))

    def __getitem__(self, part: slice) -> Samples:
        start, stop, _ = part.indices(len(self))
        pieces, before = [], 0
        for batch in self.batches:
            count = sample_count(batch)
            first, last = max(start - before, 0), min(stop - before, count)
            if first < last:
                pieces.append(batch if last - first == count else _cut(batch, slice(first, last)))
            before += count
        return Samples(tuple(pieces))

    def drawn(self, order: Sequence[int]) -> Samples:
        """These samples, in this order."""
        if len(self.batches) == 1:
            return Samples((_cut(self.batches[0], torch.as_tensor(order)),))
        return Samples.of(batch for i in order for batch in self[i : i + 1].batches)

    def split(self, size: int) -> Iterator[Batch]:
        """Batches of at most `size` samples."""
        for batch in self.batches:
            count = sample_count(batch)
            if count <= size:
                yield batch
                continue
            for start in range(0, count, size):
                yield _cut(batch, slice(start, start + size))

    def cycled(self, batches: int, size: int) -> Iterator[Batch]:
        """Exactly so many batches of `size` samples, beginning anew where they end; batches that differ in form come
        as they are, and none has more.
        """
        if len(self.batches) == 1:
            count = len(self)
            for i in range(batches):
                yield _cut(self.batches[0], torch.arange(i * size, (i + 1) * size) % count)
            return
        parts = list(self.split(size))
        for i in range(batches):
            yield parts[i % len(parts)]

    def period(self, size: int) -> int:
        """After how many batches `cycled` comes round to the first again."""
        if len(self.batches) == 1:
            return len(self) // math.gcd(len(self), size)
        return sum(1 for _ in self.split(size))


def _form(batch: Batch) -> tuple[Any, ...]:
    """What two batches must have in common to be joined."""
    count = sample_count(batch)
    values, structure = flat(batch)
    return (structure, *(_value_form(value, count) for value in values))


def _value_form(value: Any, count: int) -> tuple[Any, ...]:
    if not _is_each(value, count):
        return ("all", _content(value))
    return ("each", value.dtype, tuple(value.shape[1:])) if isinstance(value, Tensor) else ("each", type(value))


def _content(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (value.dtype, tuple(value.shape), value.tolist() if value.numel() <= 4096 else id(value))
    return value if isinstance(value, (bool, int, float, str, type(None))) else id(value)


def _is_each(value: Any, count: int) -> bool:
    """Whether a value of a batch holds one thing for each of its samples."""
    return (is_row(value) or (isinstance(value, Tensor) and value.dim() > 0)) and len(value) == count


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    count, structure = sample_count(batches[0]), flat(batches[0])[1]
    joined = []
    for values in zip(*(flat(batch)[0] for batch in batches), strict=True):
        if not _is_each(values[0], count):
            joined.append(values[0])
        elif isinstance(values[0], Tensor):
            joined.append(torch.cat(values))
        else:
            joined.append(type(values[0])(item for value in values for item in value))
    return unflat(joined, structure)


def _cut(batch: Batch, index: slice | Tensor) -> Batch:
    count = sample_count(batch)
    values, structure = flat(batch)
    return unflat([_part(value, index) if _is_each(value, count) else value for value in values], structure)


def _part(value: Any, index: slice | Tensor) -> Any:
    if isinstance(value, Tensor) or isinstance(index, slice):
        return value[index]
    return type(value)(value[i] for i in index.tolist())
