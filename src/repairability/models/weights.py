"""Reading a state dict from a file, never by unrestricted pickle."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from repairability.errors import InputError


def load_weights_(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load a state dict into `model`, in place; keys and shapes must match."""
    state = read_state(path)
    own = model.state_dict()
    counters = {key for key in own if key.endswith("num_batches_tracked")}  # old files lack them; they are no weights
    missing, extra = sorted(own.keys() - state.keys() - counters), sorted(state.keys() - own.keys())
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


def read_state(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a safetensors or torch file; one nested under "state_dict" or "model", or with the "module."
    prefix of data-parallel training, is unwrapped.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"no weights file at {file}")
    try:
        content: Any = (
            load_file(file)
            if file.suffix == ".safetensors"
            else torch.load(file, map_location="cpu", weights_only=True)
        )
    except (safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot read weights from {file}: {reason}") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not content or not all(isinstance(x, Tensor) for x in content.values()):
        raise InputError(f"{file} holds no state dict (a mapping from names to tensors)")
    return {key.removeprefix("module."): tensor for key, tensor in content.items()}


def _listed(what: str, keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"{what} {', '.join(keys[:3])}{more}; " if keys else ""
