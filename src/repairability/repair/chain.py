"""Repairs one after another: "cr+bn"."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from repairability.calibration import CalibrationSet
from repairability.layers import Layers
from repairability.repair.response import Repair, Response, name_of, respond
from repairability.repair.statistics import Statistics


@dataclass(frozen=True)
class Chain:
    steps: tuple[Repair, ...]

    @property
    def name(self) -> str:
        return "+".join(name_of(step) for step in self.steps)

    @property
    def needs_statistics(self) -> bool:
        return any(getattr(step, "needs_statistics", True) for step in self.steps)

    def __call__(self, model: nn.Module, layers: Layers, statistics: Statistics, calibration: CalibrationSet) -> None:
        for step in self.steps:
            step(model, layers, statistics, calibration)

    def respond(self, response: Response) -> Response:
        for step in self.steps:
            response = respond(step, response)
        return response
