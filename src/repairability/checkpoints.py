"""Writing and reading a pruned model: safetensors, with a readable JSON header that the tensors are checked against."""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from repairability._files import write_atomically
from repairability._torch import copy_of
from repairability.allocation import Allocation
from repairability.errors import InputError
from repairability.models.weights import own_names, state_parts
from repairability.provenance import provenance
from repairability.tables import Table

KEY = "repairability"
FORMAT = "repairability-1"
PARTS = ("rule", "score", "repair")


@dataclass(frozen=True)
class Checkpoint:
    """A pruned model read back, and what its file says about it."""

    model: nn.Module
    allocation: Allocation
    header: Mapping[str, Any]  # recipe, rule, score, repair, both sparsities, calibration fingerprint, versions

    @property
    def recipe(self) -> str:
        """How it was pruned; "not said" in files older than recipes, which still name rule and repair."""
        return self.header.get("recipe") or "not said"

    def way(self) -> dict[str, str]:
        """The recipe, and those of its parts that the file names."""
        return {"recipe": self.recipe, **{part: self.header[part] for part in PARTS if part in self.header}}

    def table(self) -> Table:
        return self.allocation.table()

    def __str__(self) -> str:
        return str(self.table())


def save_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    allocation: Allocation,
    *,
    repair: str,
    fingerprint: str,
    score: str = "magnitude",
    recipe: str = "",
) -> None:
    """Write the state of `model` with its header; written beside `path`, then renamed.

    The header says how the model came about, not what that took: the same pruning gives the same bytes.
    """
    tensors, extra = state_parts(model)
    header = {
        "recipe": recipe,
        "rule": allocation.rule,
        "score": score,
        "repair": repair,
        "target": allocation.target,
        "sparsity": allocation.sparsity,
        "global_sparsity": allocation.global_sparsity,
        "calibration": fingerprint,
        "versions": provenance(),
        "allocation": allocation.to_dict(),
        "modules": _versions(model),
        "extra": extra,
    }
    about = {"format": FORMAT, "digest": _digest(header, tensors), "header": header}
    write_atomically(path, to_bytes(tensors, {KEY: json.dumps(about)}))  # one entry: safetensors shuffles several


def load(path: str | os.PathLike[str], model: nn.Module) -> Checkpoint:
    """Read a pruned model into a copy of `model` (the architecture; it is not changed).

    A truncated file, one that this package did not write, and one whose header or tensors were edited are refused.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"no checkpoint at {file}")
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (not a mapping)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{file} is truncated or not a safetensors file: {error}") from error
    try:
        about = json.loads(metadata.get(KEY, "{}"))
    except json.JSONDecodeError:
        about = {}
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise InputError(f"{file} was not written by repairability (its metadata has no {KEY!r} of format {FORMAT!r})")
    header: dict[str, Any] = about.get("header", {})
    if about.get("digest") != _digest(header, tensors):
        raise InputError(f"{file} was changed after it was written: header and tensors do not match its digest")
    loaded = copy_of(model)
    own, extra = loaded.state_dict(), dict(header.get("extra", {}))
    state: OrderedDict[str, Any] = OrderedDict(own_names(tensors, own))
    for key in sorted(own.keys() | state.keys()):
        if key in extra:
            continue
        theirs, ours = (_form(x[key]) if key in x else "missing" for x in (state, own))
        if theirs != ours:
            raise InputError(f"{file} does not fit {type(loaded).__name__}: {key} is {theirs} there and {ours} here")
    state.update(extra)
    state._metadata = OrderedDict(header.get("modules", {}))  # type: ignore[attr-defined]
    loaded.load_state_dict(state)
    return Checkpoint(loaded, Allocation.from_dict(header["allocation"]), header)


def _form(value: object) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def _versions(model: nn.Module) -> dict[str, Any]:
    """Which version each module's state is of, where it says so: some read the state of another version otherwise."""
    return {name: dict(about) for name, about in getattr(model.state_dict(), "_metadata", {}).items()}


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for key in sorted(tensors):
        value = tensors[key]
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
