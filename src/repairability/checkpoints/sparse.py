"""Tensors as values and positions: what stands in a sparse file, and the tensors back.

A row describes one tensor; the values of all tensors follow each other in one stretch of bytes, the positions in
another: names and places for each would cost a small network more than its weights.
`docs/sparse_format.md` describes it to the byte, with a reader that needs numpy and safetensors alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repairability.checkpoints.positions import ALL, CODINGS, Bytes, Positions, decode, encode, entropy_bytes
from repairability.errors import InputError, unknown

EXACT, VALUES = "float32", ("float32", "float16", "int8")
"""How values may be stored; the first is as they are, whatever their type."""

DENSE = "dense"
"""In the place of a coding: the tensor as it is."""

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_WIDTHS = {str(x).removeprefix("torch."): x.itemsize for x in vars(torch).values() if isinstance(x, torch.dtype)}
_STEPS, _LEVELS = 8, 127
"""Scales of int8 come in eighths of a factor of two; the largest weight of a filter is at most level 127."""


@dataclass(frozen=True)
class Row:
    """One tensor of the file."""

    name: str
    dtype: str  # of the tensor
    shape: tuple[int, ...]
    values: str  # the type that its values are stored in
    coding: str  # of the positions: all, mask, rice; dense: none, for zeros are stored too
    bits: int  # of a remainder, for rice
    count: int  # of stored values
    positions: int  # bytes
    scale: float = 0.0  # of int8: the largest of any filter

    @property
    def total(self) -> int:
        return math.prod(self.shape)

    @property
    def value_bytes(self) -> int:
        """With a byte for each filter's scale where values are int8."""
        scales = self.shape[0] if self.values == "int8" and self.scale else 0
        return self.count * _WIDTHS[self.values] + scales

    @property
    def dense_bytes(self) -> int:
        return self.total * _WIDTHS[self.dtype]

    @property
    def bytes(self) -> int:
        """In the file."""
        return self.dense_bytes if self.coding == DENSE else self.value_bytes + self.positions

    @property
    def bound(self) -> float:
        """Bytes that any choice of so many positions takes, n H(p), and the values."""
        return entropy_bytes(self.total, self.count) + self.value_bytes

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape)}

    def lean(self) -> dict[str, Any]:
        """As a header holds it: no zeros, and the type of the values only where it is not the tensor's."""
        told = {key: value for key, value in self.to_dict().items() if value != 0 or key == "count"}
        return {key: value for key, value in told.items() if key != "values" or value != self.dtype}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Row:
        """From a header, which is not believed unseen."""
        blank = {"values": data["dtype"], "bits": 0, "positions": 0}
        row = cls(**{**blank, **data, "shape": tuple(data["shape"])})
        whole = (row.bits, row.count, row.positions, *row.shape)
        rounded = row.values != row.dtype
        if not isinstance(row.name, str):
            raise ValueError(f"{row.name} is no name of a tensor")
        if row.coding not in CODINGS or not {row.dtype, row.values} <= _WIDTHS.keys() or not 0 <= row.bits < 64:
            raise ValueError(f"{row.name} has a coding that nobody knows")
        if not all(isinstance(x, int) for x in whole) or min(whole) < 0 or row.count > row.total:
            raise ValueError(f"{row.name} has counts that cannot be")
        if row.coding == ALL and row.count != row.total:
            raise ValueError(f"{row.name} holds {row.count} values of {row.total}, and no positions")
        if rounded and (row.values not in VALUES or len(row.shape) < 2 or getattr(torch, row.dtype) not in _FLOATS):
            raise ValueError(f"{row.name} is stored as {row.values}, which is no way to store {row.dtype}")
        if bool(row.scale) != (rounded and row.values == "int8") or not 0 <= row.scale < math.inf:
            raise ValueError(f"{row.name} has a scale that cannot be")
        return row


def dense_rows(tensors: Mapping[str, Tensor]) -> tuple[Row, ...]:
    """The rows of tensors that are stored as they are; zeros are counted all the same."""
    rows = []
    for name in sorted(tensors):
        tensor = tensors[name]
        count = int(tensor.count_nonzero()) if tensor.dtype in _FLOATS else tensor.numel()
        dtype = str(tensor.dtype).removeprefix("torch.")
        rows.append(Row(name, dtype, tuple(tensor.shape), dtype, DENSE, 0, count, 0))
    return tuple(rows)


@dataclass(frozen=True)
class Coded:
    rows: tuple[Row, ...]
    values: Bytes
    positions: Bytes
    error: float  # the largest of any value, relative to the largest of its filter; 0: exact


def pack(tensors: Mapping[str, Tensor], values: str = EXACT) -> Coded:
    """Every tensor by the shortest of the codings. Zeros are not stored; of those that are -0.0 the sign is lost.

    `values` other than float32 are for weights, which have two axes or more; biases and normalisations stay exact.
    """
    if values not in VALUES:
        raise unknown("type of values", values, VALUES)
    rows, stored, streams, errors = [], [], [], [0.0]
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        flat, dtype = tensor.reshape(-1), str(tensor.dtype).removeprefix("torch.")
        floating = tensor.dtype in _FLOATS
        where = np.flatnonzero((flat != 0).numpy()) if floating else np.arange(flat.numel())
        coding, bits, stream = encode(where, flat.numel())
        kept = flat[torch.from_numpy(where)]
        kind, scale = dtype, 0.0
        if values != EXACT and floating and tensor.dim() > 1 and _WIDTHS[values] < tensor.dtype.itemsize and len(where):
            given = kept.double().numpy()
            filters = where // (flat.numel() // len(tensor))
            kind, raw, scale, again = _rounded(name, given, filters, len(tensor), values)
            errors.append(_error(given, again, filters, len(tensor)))
        else:
            raw = kept.view(torch.uint8).numpy() if len(where) else np.empty(0, np.uint8)
        shape = tuple(tensor.shape)
        rows.append(Row(name, dtype, shape, kind, coding, bits, len(where), len(stream), scale))
        stored.append(raw)
        streams.append(stream)
    return Coded(tuple(rows), _joined(stored), _joined(streams), max(errors))


def unpack(row: Row, values: Bytes, stream: Bytes) -> Tensor:
    """The tensor of a row, of its part of the bytes; where these do not fit the row, a ValueError that says how."""
    where = decode(row.coding, row.bits, stream, row.count, row.total)
    if len(values) != row.value_bytes:
        raise ValueError(f"its values take {len(values)} bytes, not {row.value_bytes}")
    dtype = getattr(torch, row.dtype)
    if not row.count:
        return torch.zeros(row.shape, dtype=dtype)
    if row.values == row.dtype:
        kept = torch.from_numpy(values.copy()).view(dtype)
    else:
        kept = torch.from_numpy(_restored(row, values, where)).to(dtype)
    flat = torch.zeros(row.total, dtype=dtype)
    flat[torch.from_numpy(where)] = kept
    return flat.view(row.shape)


def _rounded(
    name: str, given: np.ndarray, filters: Positions, count: int, values: str
) -> tuple[str, Bytes, float, np.ndarray]:
    """(type, bytes, scale, the numbers that are read back)."""
    if not np.isfinite(given).all():
        raise InputError(f"{name} holds numbers that are not finite, which {values} does not hold; store {EXACT}")
    if values == "float16":
        with np.errstate(over="ignore"):
            half = given.astype(np.float16)
        if not np.isfinite(half).all():
            largest = float(np.abs(given).max())
            raise InputError(f"{name} holds {largest:g}, and float16 ends at 65504; store float32 or int8")
        return values, half.view(np.uint8), 0.0, half.astype(np.float64)
    scales = _largest(given, filters, count) / _LEVELS
    top = float(f"{1.00001 * scales.max():.5e}")  # few digits, and not too small
    steps = np.zeros(count, np.uint8)  # rounded so that the scale is never too small
    used = scales > 0
    steps[used] = np.minimum(np.floor(_STEPS * np.log2(top / scales[used])), 255)
    scale = (top * 2.0 ** (steps / -_STEPS))[filters]
    levels = np.clip(np.rint(given / scale), -_LEVELS, _LEVELS).astype(np.int8)
    return values, np.concatenate([steps, levels.view(np.uint8)]), top, levels * scale


def _restored(row: Row, values: Bytes, where: Positions) -> np.ndarray:
    if row.values == "float16":
        return values.view(np.float16).astype(np.float64)
    filters = row.shape[0]
    steps, levels = values[:filters], values[filters:].view(np.int8)
    return levels * (row.scale * 2.0 ** (steps / -_STEPS))[where // (row.total // filters)]


def _error(given: np.ndarray, again: np.ndarray, filters: Positions, count: int) -> float:
    off, largest = _largest(given - again, filters, count), _largest(given, filters, count)
    return float((off[largest > 0] / largest[largest > 0]).max(initial=0.0))


def _largest(numbers: np.ndarray, filters: Positions, count: int) -> np.ndarray:
    """max |x| of each filter."""
    largest = np.zeros(count)
    np.maximum.at(largest, filters, np.abs(numbers))
    return largest


def _joined(parts: list[Bytes]) -> Bytes:
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)
