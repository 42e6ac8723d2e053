"""What a file of ours holds, in either format: a header and tensors, checked against a digest; no pickle anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from repairability._files import write_atomically
from repairability._json import defined, read_json
from repairability._torch import holds_nan
from repairability.allocation import check_sparsity
from repairability.checkpoints.about import FileInfo
from repairability.checkpoints.positions import Bytes
from repairability.checkpoints.sparse import DENSE, EXACT, VALUES, Coded, Row, dense_rows, pack, unpack
from repairability.errors import InputError, first_line, shortened, shown, unknown

KEY = "repairability"
SPARSE = "sparse"
FORMATS = (DENSE, SPARSE)
_MARKS = {"repairability-1": DENSE, "repairability-sparse-1": SPARSE}
_PARTS = ("header", "positions", "values")
_SHARES, _MAPPINGS = ("target", "sparsity", "global_sparsity"), ("extra", "modules", "rounded")
"""What a header may say in numbers between 0 and 1, and what in mappings."""
_LONGEST = 2**26
"""Bytes of a header, beyond which a file is not believed."""

Form = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Content:
    """A file as it was read. Tensors of a sparse file are unpacked when they are asked for."""

    file: Path
    format: str
    header: Mapping[str, Any]
    rows: tuple[Row, ...]
    size: int  # bytes of the file
    tensor: Callable[[str], Tensor]

    @property
    def info(self) -> FileInfo:
        return FileInfo(str(self.file), self.format, self.size, self.header, self.rows)

    def forms(self) -> dict[str, Form]:
        return {row.name: (row.shape, getattr(torch, row.dtype)) for row in self.rows}

    def tensors(self) -> dict[str, Tensor]:
        return {row.name: self.tensor(row.name) for row in self.rows}


def check_format(format: str, values: str) -> None:
    """Refuse what no file can be, before anything is reckoned for it."""
    if format not in FORMATS:
        raise unknown("file format", format, FORMATS)
    if values not in VALUES:
        raise unknown("type of values", values, VALUES)
    if format == DENSE and values != EXACT:
        raise InputError(f"a dense file holds the tensors as they are; values {values!r} go with format 'sparse'")


def write_content(
    path: str | os.PathLike[str] | None,
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    format: str = DENSE,
    values: str = EXACT,
) -> FileInfo:
    """Write beside `path`, then rename; the same content gives the same bytes. The header tells of rounded values.
    Without a path nothing is written, and what would be is described.
    """
    check_format(format, values)
    header = defined(header)
    for name, tensor in tensors.items():
        if holds_nan(tensor):
            raise InputError(f"{name} holds nan: such a network is not written")
    if format == DENSE:
        about = {"format": "repairability-1", "digest": dense_digest(header, tensors), "header": header}
        parts, rows = dict(tensors), dense_rows(tensors)
    else:
        packed = pack(tensors, values)
        header = {**header, **_rounding(header, values, packed)}
        parts, rows = _sparse_parts(header, packed), packed.rows
        about = {"format": "repairability-sparse-1", "digest": sparse_digest(parts)}
    data = to_bytes(parts, {KEY: json.dumps(about)})  # one entry: safetensors shuffles several
    if path is not None:
        write_atomically(path, data)
    return FileInfo("" if path is None else os.fspath(path), format, len(data), header, rows)


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Which of the formats a file says that it is of; None for what this package did not write."""
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            return _format(_about(opened.metadata()))
    except (safetensors.SafetensorError, OSError, ValueError, RuntimeError):
        return None


def read_content(path: str | os.PathLike[str]) -> Content:
    """Read a file of either format. A truncated file, one that this package did not write, and one whose header or
    tensors were edited are refused.
    """
    file = Path(path)
    if not os.path.isfile(file):
        raise InputError(f"no checkpoint at {shown(str(file))}")
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = _about(opened.metadata())
            # clones: what is checked here stays what it is, whatever becomes of the file
            tensors = {key: opened.get_tensor(key).clone() for key in opened.keys()}  # noqa: SIM118 (not a mapping)
    except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{file} is truncated or not a safetensors file: {first_line(error)}") from error
    format = _format(about)
    if format is None:
        known = " or ".join(map(repr, _MARKS))
        raise InputError(f"{file} was not written by repairability (its metadata has no {KEY!r} of format {known})")
    size = file.stat().st_size
    if format == SPARSE:
        return _sparse_content(file, about.get("digest"), tensors, size)
    header = _header(file, about.get("header"))
    if about.get("digest") != dense_digest(header, tensors):
        raise InputError(f"{file} was changed after it was written: header and tensors do not match its digest")
    return Content(file, DENSE, header, dense_rows(tensors), size, tensors.__getitem__)


def _about(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """Our entry of a file's metadata, empty where there is none."""
    try:
        about = read_json((metadata or {}).get(KEY, "{}"))
    except InputError:
        return {}
    return about if isinstance(about, dict) else {}


def _format(about: Mapping[str, Any]) -> str | None:
    return _MARKS.get(str(about.get("format")))


def _header(file: Path, header: object) -> dict[str, Any]:
    """What a file says of itself, which is not believed unseen."""
    if not isinstance(header, dict):
        raise InputError(f"{file} has a header that cannot be read: it is a {type(header).__name__}")
    try:
        for name in _SHARES:
            if header.get(name) is not None:
                check_sparsity(header[name], name)
        parts = {name: header.get(name, {}) for name in _MAPPINGS}
        for name, part in (*parts.items(), *parts["modules"].items()):
            if not isinstance(part, dict):
                raise InputError(f"{name} is {shortened(part)}")
        if not 0 <= parts["rounded"].get("error", 0.0) < 1e9:
            raise InputError(f"rounded is {shortened(parts['rounded'])}")
    except (InputError, TypeError, AttributeError) as error:
        raise InputError(f"{file} has a header that cannot be read: {first_line(error)}") from error
    return header


def dense_digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for key in sorted(tensors):
        value = tensors[key]
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sparse_digest(parts: Mapping[str, Tensor]) -> str:
    """Of the three tensors of a sparse file, each behind its name and length."""
    digest = hashlib.sha256()
    for name in _PARTS:
        digest.update(f"{name} {parts[name].numel()} ".encode())
        digest.update(parts[name].numpy().data)
    return digest.hexdigest()


def _rounding(header: Mapping[str, Any], values: str, packed: Coded) -> dict[str, Any]:
    """Told where values were rounded, and kept when they are written again; errors of several roundings add up."""
    if values == EXACT:
        return {}
    before = header.get("rounded", {})
    types = dict.fromkeys([*str(before.get("values") or values).split(", "), values])
    return {"rounded": {"values": ", ".join(types), "error": packed.error + before.get("error", 0.0)}}


def _sparse_parts(header: Mapping[str, Any], packed: Coded) -> dict[str, Tensor]:
    told = {"header": header, "tensors": [row.lean() for row in packed.rows]}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    index = np.frombuffer(zlib.compress(text.encode(), 9), np.uint8)
    streams = (index, packed.positions, packed.values)
    return {name: torch.from_numpy(stream.copy()) for name, stream in zip(_PARTS, streams, strict=True)}


def _sparse_content(file: Path, digest: object, parts: Mapping[str, Tensor], size: int) -> Content:
    if parts.keys() != set(_PARTS) or any(part.dtype != torch.uint8 or part.dim() != 1 for part in parts.values()):
        raise InputError(
            f"{file} must hold {', '.join(_PARTS)} as bytes; it holds {', '.join(sorted(parts)) or 'nothing'}"
        )
    if digest != sparse_digest(parts):
        raise InputError(f"{file} was changed after it was written: header and tensors do not match its digest")
    try:
        inflate = zlib.decompressobj()
        index = read_json(inflate.decompress(parts["header"].numpy().tobytes(), _LONGEST).decode())
        told, rows = index["header"], tuple(Row.of(row) for row in index["tensors"])
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} has a header that cannot be read: {first_line(error)}") from error
    header = _header(file, told)
    values, positions = (parts[name].numpy() for name in ("values", "positions"))
    places: dict[str, tuple[Row, Bytes, Bytes]] = {}
    at_value = at_position = 0
    for row in rows:
        end, last = at_value + row.value_bytes, at_position + row.positions
        places[row.name] = (row, values[at_value:end], positions[at_position:last])
        at_value, at_position = end, last
    if len(places) != len(rows):
        raise InputError(f"{file} names a tensor twice")
    for what, told, held in (("values", at_value, len(values)), ("positions", at_position, len(positions))):
        if told != held:
            raise InputError(f"{file} has counts that do not fit: its {what} take {held} bytes, its header says {told}")

    def tensor(name: str) -> Tensor:
        try:
            return unpack(*places[name])
        except (ValueError, IndexError, TypeError, RuntimeError, MemoryError) as error:
            raise InputError(f"{file} has counts that do not fit: {name}: {first_line(error)}") from error

    return Content(file, SPARSE, header, rows, size, tensor)
