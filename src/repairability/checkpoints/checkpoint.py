"""Writing and reading a pruned model: how it came about stands beside its state, in one file."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repairability._torch import check_finite, copy_of
from repairability.allocation import Allocation
from repairability.checkpoints.about import FileInfo
from repairability.checkpoints.content import read_content, write_content
from repairability.checkpoints.sparse import DENSE, EXACT
from repairability.errors import InputError, first_line, shortened
from repairability.masks import Masks
from repairability.models.weights import own_names, state_parts
from repairability.network.discover import layers_named
from repairability.provenance import provenance
from repairability.tables import Table

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

    @property
    def masks(self) -> Masks:
        """Which weights of the pruned layers are not zero."""
        return Masks({layer.name: layer.weight.detach() != 0 for layer in layers_named(self.model, self.allocation)})

    def way(self) -> dict[str, str]:
        """The recipe, and those of its parts that the file names."""
        return {"recipe": self.recipe, **{part: self.header[part] for part in PARTS if part in self.header}}

    def table(self) -> Table:
        return self.allocation.table()

    def __str__(self) -> str:
        return str(self.table())


def save_checkpoint(
    path: str | os.PathLike[str] | None,
    model: nn.Module,
    allocation: Allocation,
    *,
    repair: str,
    fingerprint: str,
    score: str = "magnitude",
    recipe: str = "",
    format: str = DENSE,
    values: str = EXACT,
) -> FileInfo:
    """Write the state of `model` with its header; written beside `path`, then renamed.

    The header says how the model came about, not what that took: the same pruning gives the same bytes. Without a path
    nothing is written, and what would be is described.
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
    return write_content(path, header, tensors, format=format, values=values)


def load(path: str | os.PathLike[str], model: nn.Module) -> Checkpoint:
    """Read a pruned model, of either format, into a copy of `model` (the architecture; it is not changed).

    A truncated file, one that this package did not write, and one whose header or tensors were edited are refused.
    """
    content = read_content(path)
    file, header = content.file, content.header
    try:
        allocation = Allocation.from_dict(header["allocation"])
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        words = f"{file} does not say how it was pruned: its header has no allocation"
        raise InputError(f"{words} ({shortened(error)})") from error
    loaded = copy_of(model)
    own, extra = loaded.state_dict(), dict(header.get("extra", {}))
    names = own_names({name: name for name in content.forms()}, own)  # ours -> the file's
    theirs = {name: _form(*content.forms()[given]) for name, given in names.items()}
    ours = {name: _form(x.shape, x.dtype) if isinstance(x, Tensor) else type(x).__name__ for name, x in own.items()}
    for key in sorted((theirs.keys() | ours.keys()) - extra.keys()):
        there, here = theirs.get(key, "missing"), ours.get(key, "missing")
        if there != here:
            raise InputError(f"{file} does not fit {type(loaded).__name__}: {key} is {there} there and {here} here")
    state: OrderedDict[str, Any] = OrderedDict((name, content.tensor(given)) for name, given in names.items())
    state.update(extra)
    state._metadata = OrderedDict(header.get("modules", {}))  # type: ignore[attr-defined]
    try:
        loaded.load_state_dict(state)
    except Exception as error:  # whatever a module makes of a state that is none of its own
        raise InputError(f"{file} does not fit {type(loaded).__name__}: {first_line(error)}") from error
    check_finite(loaded, str(file))
    return Checkpoint(loaded, allocation, header)


def _form(shape: Sequence[int], dtype: torch.dtype) -> str:
    return f"{tuple(shape)} {dtype}"


def _versions(model: nn.Module) -> dict[str, Any]:
    """Which version each module's state is of, where it says so: some read the state of another version otherwise."""
    return {name: dict(about) for name, about in getattr(model.state_dict(), "_metadata", {}).items()}
