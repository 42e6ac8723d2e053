"""Reading a state dict from a file, never by unrestricted pickle."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from repairability.errors import InputError, first_line

UNREADABLE = (safetensors.SafetensorError, pickle.UnpicklingError, OSError, RuntimeError, EOFError, ValueError)
"""What reading a safetensors or torch file raises where it is damaged, or no such file."""


def load_weights_(model: nn.Module, path: str | os.PathLike[str], *, new_head: bool = False) -> None:
    """Load a state dict into `model`, in place; keys and shapes must match.

    With `new_head` the file's head may be one for another number of classes: then the model keeps its own, and a
    warning says so.
    """
    state = read_state(path)
    own = model.state_dict()
    dispensable = {key for key in own if key.endswith("num_batches_tracked")}  # no weights; old files lack them
    notice = ""
    if new_head and (head := _head_for_others(model, state)):
        theirs, ours = len(state[f"{head}.weight"]), len(own[f"{head}.weight"])
        notice = f"the head {head} in {path} is for {theirs} classes; the model has {ours}, so its head is new"
        left_out = {f"{head}.weight", f"{head}.bias"}
        state = {key: tensor for key, tensor in state.items() if key not in left_out}
        dispensable |= left_out
    missing, extra = sorted(own.keys() - state.keys() - dispensable), sorted(state.keys() - own.keys())
    if missing or extra:
        raise InputError(
            f"{path} does not fit {type(model).__name__}: "
            f"{_listed('it lacks', missing)}{_listed('it has the unknown', extra)}".rstrip("; ")
        )
    for key, tensor in state.items():
        if tensor.shape != own[key].shape:
            raise InputError(
                f"{path} does not fit {type(model).__name__}: {key} is {tuple(tensor.shape)} in the file and "
                f"{tuple(own[key].shape)} in the model (is the number of classes right?)"
            )
    model.load_state_dict(state, strict=False)  # what may be missing was checked above
    if notice:
        warnings.warn(notice, stacklevel=2)


def read_state(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a safetensors or torch file; one nested under "state_dict" or "model", or with the "module."
    prefix of data-parallel training, is unwrapped.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"no weights file at {file}")
    try:
        safe = file.suffix == ".safetensors"
        content: Any = load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise InputError(f"cannot read weights from {file}: {first_line(error)}") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not content or not all(isinstance(item, Tensor) for item in content.values()):
        raise InputError(f"{file} holds no state dict (a mapping from names to tensors)")
    return {key.removeprefix("module."): tensor for key, tensor in content.items()}


def last_linear(model: nn.Module) -> tuple[str, nn.Linear] | None:
    """The head of a classifier: its last Linear layer, by name."""
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None


def _head_for_others(model: nn.Module, state: dict[str, Tensor]) -> str:
    """The name of the head, if the file's takes the same features to another number of classes."""
    name, head = last_linear(model) or ("", None)
    theirs = state.get(f"{name}.weight")
    if head is None or theirs is None or theirs.shape[1:] != head.weight.shape[1:]:
        return ""
    return name if len(theirs) != head.out_features else ""


def _listed(what: str, keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"{what} {', '.join(keys[:3])}{more}; " if keys else ""
