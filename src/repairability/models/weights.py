"""Weights: a state dict from a file, never by unrestricted pickle, or torchvision's own, downloaded."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.error import URLError

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from repairability._torch import check_finite
from repairability._vision import torchvision
from repairability.errors import InputError, first_line, safe_cause, shown

T = TypeVar("T")

PRETRAINED = "imagenet"
"""In the place of a weights file: torchvision's own."""


def load_weights_(model: nn.Module, path: str | os.PathLike[str], *, new_head: bool = False) -> None:
    """Load a state dict into `model`, in place; keys and shapes must match.

    With `new_head` the file's head may be one for another number of classes: then the model keeps its own, and a
    warning says so.
    """
    own = model.state_dict()
    state = own_names(read_state(path), own)
    may_lack = {key for key in own if key.endswith("num_batches_tracked")}  # no weights; old files lack them
    state |= {key: state[key].view(own[key].shape) for key in may_lack & state.keys() if state[key].numel() == 1}
    head, notice = _head(model), ""
    theirs, ours = (tensors.get(f"{head}.weight", torch.empty(0)) for tensors in (state, own))
    if new_head and len(theirs) != len(ours) and theirs.shape[1:] == ours.shape[1:]:
        notice = (
            f"the head {head} in {path} is for {len(theirs)} classes; the model has {len(ours)}, so its head is new"
        )
        may_lack |= {f"{head}.weight", f"{head}.bias"}
        state = {key: tensor for key, tensor in state.items() if key not in may_lack}
    missing, extra = sorted(own.keys() - state.keys() - may_lack), sorted(state.keys() - own.keys())
    misfit = f"{path} does not fit {type(model).__name__}"
    if missing or extra:
        words = f"{_listed('it lacks', missing)}{_listed('it has the unknown', extra)}".rstrip("; ")
        raise InputError(f"{misfit}: {words}")
    for key, tensor in state.items():
        if tensor.shape != own[key].shape:
            shapes = f"{tuple(tensor.shape)} in the file and {tuple(own[key].shape)} in the model"
            raise InputError(f"{misfit}: {key} is {shapes} (is the number of classes right?)")
    model.load_state_dict(state, strict=False)  # what may be missing was checked above
    if notice:
        warnings.warn(notice, stacklevel=2)


def read_state(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a safetensors or torch file; one nested under "state_dict" or "model", or with the prefixes of
    data-parallel training and torch.compile, is unwrapped.
    """
    file = Path(path)
    if not os.path.isfile(file):
        raise InputError(f"no weights file at {shown(str(file))}")
    safe = file.suffix == ".safetensors"
    try:
        content: Any = load_file(file) if safe else load_plain(file)
    except Exception as error:  # whatever foreign bytes lead their readers to
        wanted = "safetensors" if safe else "torch (read without running code from it), and not called .safetensors"
        raise InputError(
            f"cannot read weights from {file}: it is damaged, or no file of {wanted}: {first_line(error)}"
        ) from safe_cause(error)
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not content or not all(isinstance(x, Tensor) for x in content.values()):
        raise InputError(f"{file} holds no state dict (a mapping from names to tensors)")
    for key, tensor in content.items():
        if not isinstance(key, str):
            raise InputError(f"{file} holds no state dict: a tensor in it is called {key!r}, which is no name")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise InputError(f"{file} holds no plain weights: {shown(key)} is {tensor.layout} ({tensor.dtype})")
    return content


def load_plain(file: Path | BinaryIO) -> Any:
    """What torch saved, if it is tensors and plain containers alone; torch's warnings tell how else to load, and are
    not repeated.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True)


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a state dict as safetensors takes them."""
    return state_parts(model)[0]


def state_bytes(model: nn.Module) -> int:
    """What the tensors of a state dict take in a file."""
    return sum(x.numel() * x.element_size() for x in model.state_dict().values() if isinstance(x, Tensor))


def state_parts(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state dict as safetensors takes it, on the CPU and no two tensors sharing memory, and what is not tensors in
    it (a module's extra state), if JSON holds it; else it is refused by name, as are nan and inf.
    """
    check_finite(model)
    tensors: dict[str, Tensor] = {}
    extra: dict[str, Any] = {}
    for key, value in model.state_dict().items():
        if isinstance(value, Tensor):
            if value.layout != torch.strided or type(value) not in (Tensor, nn.Parameter):
                raise InputError(f"{key} is a {type(value).__name__} ({value.layout}), which safetensors does not hold")
            tensors[key] = value.detach().cpu().contiguous().clone()
            continue
        try:
            same = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            raise InputError(f"the state {key} is a {type(value).__name__}, which neither safetensors nor JSON holds")
        extra[key] = value
    return tensors, extra


PREFIXES = ("module.", "_orig_mod.")
"""What data-parallel training and torch.compile put before a name."""


def own_names(state: Mapping[str, T], own: Mapping[str, Any]) -> dict[str, T]:
    """The state under the model's own names: what wrappers put before them goes, unless the model has it so."""
    stripped = {_stripped(key, own): tensor for key, tensor in state.items()}
    return stripped if len(stripped) == len(state) else dict(state)


def _stripped(key: str, own: Mapping[str, Any]) -> str:
    """Also inside a name: a block that was compiled by itself is layer1._orig_mod.0.weight."""
    while key not in own and key.startswith(PREFIXES):
        key = key.partition(".")[2]
    return key if key in own else key.replace("._orig_mod.", ".")


def pretrained_model(name: str, num_classes: int | None) -> nn.Module:
    """torchvision's network and ImageNet weights, hash-checked and read weights-only; a new head for other classes."""
    models = torchvision("models")
    weights = models.get_model_weights(name).DEFAULT
    model: nn.Module = models.get_model(name)
    try:
        state = weights.get_state_dict(progress=True, check_hash=True, weights_only=True)
    except (URLError, OSError) as error:
        raise InputError(
            f"the ImageNet weights of {name} could not be downloaded ({first_line(error)}); offline, give a file "
            f"instead: weights=PATH (torchvision's {weights.url.rsplit('/', 1)[-1]}, or safetensors)"
        ) from error
    model.load_state_dict(state)
    if num_classes is not None:
        name = _head(model)
        if not name:
            raise InputError(f"{type(model).__name__} has no Linear head to replace")
        parent, _, attribute = name.rpartition(".")
        head = model.get_submodule(name)
        if isinstance(head, nn.Linear) and head.out_features != num_classes:
            new = nn.Linear(head.in_features, num_classes, bias=head.bias is not None)
            model.get_submodule(parent).add_module(attribute, new)
    return model


def _head(model: nn.Module) -> str:
    """The name of a classifier's last Linear layer; empty where it has none."""
    return next((name for name, module in reversed([*model.named_modules()]) if isinstance(module, nn.Linear)), "")


def _listed(what: str, keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"{what} {', '.join(map(shown, keys[:3]))}{more}; " if keys else ""
