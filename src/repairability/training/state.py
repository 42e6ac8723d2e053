"""The state of a training, as a file after each epoch: safetensors, settings and learning curve in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import nn

from repairability._files import write_atomically
from repairability.errors import InputError
from repairability.training.recipe import Epoch, tensors_of

KEY, FORMAT = "repairability", "repairability-training-1"


@dataclass(frozen=True)
class State:
    """All that training changes."""

    model: nn.Module
    optimizer: torch.optim.SGD
    generator: torch.Generator
    curve: list[Epoch]


def write_state(state: State, file: Path, settings: Mapping[str, Any]) -> None:
    tensors = {f"model.{key}": tensor for key, tensor in tensors_of(state.model).items()}
    for i, weight in enumerate(state.optimizer.param_groups[0]["params"]):
        buffer = state.optimizer.state[weight].get("momentum_buffer")
        if buffer is not None:
            tensors[f"momentum.{i}"] = buffer.detach().cpu().contiguous().clone()
    tensors["generator"] = state.generator.get_state()
    about = {"format": FORMAT, "settings": settings, "curve": [asdict(x) for x in state.curve]}
    write_atomically(file, to_bytes(tensors, {KEY: json.dumps(about)}))


def continue_(state: State, file: Path, settings: Mapping[str, Any]) -> None:
    """Put everything as it was after the last whole epoch; a file of another training is refused."""
    anew = "remove it (--restart) to begin anew"
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = json.loads((opened.metadata() or {}).get(KEY, "{}"))
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (not a mapping)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise InputError(f"cannot continue from {file}: {error}; {anew}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise InputError(f"{file} is no state of a training of format {FORMAT!r}; {anew}")
    theirs = about["settings"]
    other = [
        f"the {key} differ" if key == "initial weights" else f"{key} is {theirs.get(key)} there and {ours} here"
        for key, ours in settings.items()
        if theirs.get(key) != ours
    ]
    if other:
        raise InputError(f"{file} is the state of another training ({'; '.join(other)}); {anew}")
    prefix = "model."
    state.model.load_state_dict({k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)})
    for i, weight in enumerate(state.optimizer.param_groups[0]["params"]):
        if f"momentum.{i}" in tensors:
            buffer = torch.empty_like(weight).copy_(tensors[f"momentum.{i}"])  # in the weight's own layout
            state.optimizer.state[weight]["momentum_buffer"] = buffer
    state.generator.set_state(tensors["generator"])
    state.curve[:] = [Epoch(**x) for x in about["curve"]]
