"""What is trained of our copy: every parameter, but not the weights that are gone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repairability.errors import InputError
from repairability.network.layers import Layers, part_of, tensor_of

_LEAST = 1e-2
"""A parameter moves as if its values were of this size at least: one that is all zeros can leave it."""


class TrainedWeights:
    """What is trained of our copy: every parameter, but not the weights that are gone."""

    def __init__(self, model: nn.Module, lost: Layers) -> None:
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.sizes = [_size(parameter.detach()) for parameter in self.trained]
        self.optimizer = torch.optim.Adam([{"params": [parameter]} for parameter in self.trained])
        self.steps = 0
        self.gone: dict[Tensor, Tensor] = {}  # parameter -> where its weights are gone
        for layer in lost:
            parameter = tensor_of(model, layer.place)
            gone = self.gone.setdefault(parameter, torch.zeros_like(parameter, dtype=torch.bool))
            part_of(gone, layer.part).copy_(layer.weight == 0)

    def step_(self, error: Tensor, rate: float) -> None:
        self.optimizer.zero_grad()
        error.backward()  # type: ignore[no-untyped-call]
        for parameter, gone in self.gone.items():
            if parameter.grad is not None:
                parameter.grad.masked_fill_(gone, 0)
        for group, size in zip(self.optimizer.param_groups, self.sizes, strict=True):
            group["lr"] = rate * size
        self.optimizer.step()
        self.steps += 1
        with torch.no_grad():
            for parameter, gone in self.gone.items():
                parameter.masked_fill_(gone, 0)

    def state(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.trained]

    def load_(self, state: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, values in zip(self.trained, state, strict=True):
                parameter.copy_(values)


def _size(parameter: Tensor) -> float:
    """The root mean square of what is not zero."""
    squares = parameter.square()
    return max(_LEAST, float((squares.sum() / squares.count_nonzero().clamp(min=1)).sqrt()))


def check_precision(model: nn.Module, repair: str) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"repair {repair!r} trains, and {name} is {parameter.dtype}, too coarse for small steps; "
                "prune model.float() and convert what comes out"
            )
