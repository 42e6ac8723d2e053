"""Repairs one after another: "cr+bn"."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from repairability.calibration import CalibrationSet
from repairability.network.layers import Layers
from repairability.repairs.response import Repair, Response, apply_repair_, chooses_masks, name_of, respond
from repairability.repairs.statistics import Statistics


@dataclass(frozen=True)
class Chain:
    steps: tuple[Repair, ...]

    @property
    def name(self) -> str:
        return "+".join(name_of(step) for step in self.steps)

    @property
    def needs_statistics(self) -> bool:
        return any(getattr(step, "needs_statistics", True) for step in self.steps)

    @property
    def needs_dense(self) -> bool:
        return any(getattr(step, "needs_dense", False) for step in self.steps)

    @property
    def chooses_masks(self) -> bool:
        """The first step would; a later one comes too late."""
        return chooses_masks(self.steps[0])

    def __call__(
        self,
        model: nn.Module,
        layers: Layers,
        statistics: Statistics,
        calibration: CalibrationSet,
        *,
        dense: nn.Module | None = None,
        choose: object = None,
    ) -> None:
        for i, step in enumerate(self.steps):
            first = choose if i == 0 else None
            apply_repair_(step, model, layers, statistics, calibration, dense=dense or model, choose=first)

    def respond(self, response: Response) -> Response:
        for step in self.steps:
            response = respond(step, response)
        return response
