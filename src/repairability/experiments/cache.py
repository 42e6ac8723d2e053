"""What runs share on disk: content-addressed, computed once however many processes ask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from repairability._files import write_atomically
from repairability.algebra.sums import OutputMoments
from repairability.diagnostics import Diagnosis
from repairability.experiments.store import Store


def key_of(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


def cached(store: Store | None, kind: str, key: str, compute: Callable[[], bytes]) -> tuple[bytes, bool]:
    """The bytes of an entry, and whether they were there. One process computes, the others wait for it.

    An entry names its own hash, so that a damaged one is noticed and made again.
    """
    if store is None:
        return compute(), False
    path = store.cache / kind / key
    if (known := _read(path)) is not None:
        return known, True
    with store.claim(f"{kind}-{key}", wait=True):
        return _computed(path, compute)


def cached_all(store: Store | None, entries: Mapping[str, tuple[str, Callable[[], bytes]]]) -> dict[str, bytes]:
    """Several entries, kind -> (key, how to compute it): what another process computes just now comes last."""
    found: dict[str, bytes] = {}
    for kind, (key, compute) in entries.items():
        if store is None or _read(store.cache / kind / key) is not None:
            continue
        with store.claim(f"{kind}-{key}") as free:
            if free:
                found[kind] = _computed(store.cache / kind / key, compute)[0]
    return {kind: found.get(kind) or cached(store, kind, key, compute)[0] for kind, (key, compute) in entries.items()}


def _computed(path: Path, compute: Callable[[], bytes]) -> tuple[bytes, bool]:
    if (known := _read(path)) is not None:
        return known, True
    content = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, hashlib.sha256(content).digest() + content)
    return content, False


def _read(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    content = data[32:]
    return content if hashlib.sha256(content).digest() == data[:32] else None


def pack_diagnosis(diagnosis: Diagnosis) -> bytes:
    """The curves as JSON in the header, the dense statistics as tensors."""
    tensors = {
        f"{layer}|{part}": getattr(moments, part).clone()
        for layer, moments in (diagnosis.statistics or {}).items()
        for part in ("mean", "var")
    }
    counts = {layer: moments.count for layer, moments in (diagnosis.statistics or {}).items()}
    metadata = {"diagnosis": diagnosis.to_json(), "counts": json.dumps(counts)}
    return to_bytes({"": torch.zeros(1), **tensors}, metadata)


def unpack_diagnosis(content: bytes) -> Diagnosis:
    size = int.from_bytes(content[:8], "little")
    header: Mapping[str, Any] = json.loads(content[8 : 8 + size])["__metadata__"]
    tensors = from_bytes(content)
    counts = json.loads(header["counts"])
    statistics = {
        layer: OutputMoments(mean=tensors[f"{layer}|mean"], var=tensors[f"{layer}|var"], count=count)
        for layer, count in counts.items()
    }
    return replace(Diagnosis.from_json(header["diagnosis"]), statistics=statistics)
