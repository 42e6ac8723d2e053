"""What runs share on disk: content-addressed, computed once however many processes ask."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from repairability._files import read_sealed, write_sealed
from repairability.algebra.sums import Moments
from repairability.diagnostics import Diagnosis
from repairability.errors import InputError
from repairability.experiments.store import Store


def key_of(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


def cached(store: Store | None, kind: str, key: str, compute: Callable[[], bytes]) -> bytes:
    """The bytes of an entry: read, or computed by one process while the others wait for it."""
    if store is None:
        return compute()
    path = store.cache / kind / key
    content = _read(path)
    if content is None:
        with store.lock(f"{kind}-{key}"):
            content = _read(path)
            if content is None:
                content = compute()
                path.parent.mkdir(parents=True, exist_ok=True)
                write_sealed(path, content)
    return content


def busy(store: Store | None, kind: str, key: str) -> bool:
    """Whether another process computes this entry just now."""
    lock = store and store.claim(f"{kind}-{key}")
    if lock:
        lock.release()
    return store is not None and lock is None


def _read(path: Path) -> bytes | None:
    """None where there is no entry, or a damaged one: it is made again."""
    with suppress(FileNotFoundError, InputError):
        return read_sealed(path)
    return None


def pack_diagnosis(diagnosis: Diagnosis) -> bytes:
    """The curves as JSON, the dense statistics as tensors."""
    statistics = {
        layer: (moments.mean.clone(), moments.var.clone(), moments.count)  # clones: a view is saved with all it views
        for layer, moments in (diagnosis.statistics or {}).items()
    }
    file = io.BytesIO()
    torch.save({"diagnosis": diagnosis.to_json(), "statistics": statistics}, file)
    return file.getvalue()


def unpack_diagnosis(content: bytes) -> Diagnosis:
    parts = torch.load(io.BytesIO(content), weights_only=True)
    statistics = {layer: Moments(*moments) for layer, moments in parts["statistics"].items()}
    return replace(Diagnosis.from_json(parts["diagnosis"]), statistics=statistics)
