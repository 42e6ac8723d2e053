"""Repairs one after another: "cr+bn"."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from repairability.network.layers import Layers
from repairability.repairs.repair import Fit, Repair, RepairContext
from repairability.repairs.response import Response


@dataclass(frozen=True)
class Chain(Repair):
    """Each step begins with what the one before left. Only the first can choose masks: a later one comes too late."""

    steps: tuple[Repair, ...]

    @property
    def needs_statistics(self) -> bool:  # type: ignore[override]  # a chain needs what its steps need
        return any(step.needs_statistics for step in self.steps)

    @property
    def needs_gradients(self) -> bool:  # type: ignore[override]
        return any(step.needs_gradients for step in self.steps)

    @property
    def chooses_masks(self) -> bool:  # type: ignore[override]
        return self.steps[0].chooses_masks

    @property
    def fit(self) -> Fit | None:
        return self.steps[0].fit

    def __call__(self, context: RepairContext) -> None:
        first, *others = self.steps
        first(context)
        for step in others:
            step(replace(context, choose=None))

    def notes(self, model: nn.Module, lost: Layers) -> tuple[str, ...]:
        return tuple(note for step in self.steps for note in step.notes(model, lost))

    def respond(self, response: Response) -> Response:
        for step in self.steps:
            response = step.respond(response)
        return response
