"""No repair: the pruned network as it is."""

from __future__ import annotations

from dataclasses import dataclass

from repairability.repairs.repair import Repair, RepairContext
from repairability.repairs.response import Response


@dataclass(frozen=True)
class NoRepair(Repair):
    def __call__(self, context: RepairContext) -> None:
        """Change nothing."""

    def respond(self, response: Response) -> Response:
        return response
