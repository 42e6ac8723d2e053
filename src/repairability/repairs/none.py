"""No repair: the pruned network as it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from repairability.calibration import CalibrationSet
from repairability.network.layers import Layers
from repairability.repairs.response import Response
from repairability.repairs.statistics import Statistics


@dataclass(frozen=True)
class NoRepair:
    name: str = "none"
    needs_statistics = False

    def __call__(self, model: nn.Module, layers: Layers, statistics: Statistics, calibration: CalibrationSet) -> None:
        """Change nothing."""

    def respond(self, response: Response) -> Response:
        return response
