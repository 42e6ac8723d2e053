"""The state of a training, as a file after each epoch: what torch saves, read weights-only."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from repairability._files import read_sealed, write_sealed
from repairability.errors import InputError, first_line
from repairability.models.weights import UNREADABLE
from repairability.training.recipe import Epoch

FORMAT = "repairability-training-2"


@dataclass(frozen=True)
class State:
    """All that training changes."""

    model: nn.Module
    optimizer: torch.optim.SGD
    schedule: OneCycleLR
    generator: torch.Generator
    curve: list[Epoch]

    def parts(self) -> dict[str, nn.Module | torch.optim.SGD | OneCycleLR]:
        """What torch saves and loads by itself."""
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}


def write_state(state: State, file: Path, settings: Mapping[str, Any]) -> None:
    parts = {name: part.state_dict() for name, part in state.parts().items()}
    about = {"format": FORMAT, "settings": dict(settings), "curve": [asdict(epoch) for epoch in state.curve]}
    content = io.BytesIO()
    torch.save({**about, **parts, "generator": state.generator.get_state()}, content)
    write_sealed(file, content.getvalue())


def continue_(state: State, file: Path, settings: Mapping[str, Any]) -> None:
    """Put everything as it was after the last whole epoch; a file of another training is refused."""
    anew = "remove it (--restart) to begin anew"
    try:
        content = torch.load(io.BytesIO(read_sealed(file)), map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise InputError(f"cannot continue from {file}: {first_line(error)}; {anew}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{file} is no state of a training of format {FORMAT!r}; {anew}")
    theirs = content["settings"]
    other = [
        f"the {key} differ" if key == "initial weights" else f"{key} is {theirs.get(key)} there and {ours} here"
        for key, ours in settings.items()
        if theirs.get(key) != ours
    ]
    if other:
        raise InputError(f"{file} is the state of another training ({'; '.join(other)}); {anew}")
    for name, part in state.parts().items():
        part.load_state_dict(content[name])
    state.generator.set_state(content["generator"])
    state.curve[:] = [Epoch(**epoch) for epoch in content["curve"]]
