"""What a repair is: what it needs, what it is given, and what it can tell the diagnostics about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from repairability.algebra.least_squares import LeastSquares
from repairability.calibration import CalibrationSet
from repairability.errors import InputError
from repairability.naming import Named
from repairability.network.layers import Layers
from repairability.repairs.response import Response
from repairability.repairs.statistics import Statistics

Choose = Callable[[str, LeastSquares], Tensor]
"""(layer, its problem) -> a mask [G, R, K], True where a weight stays."""


@dataclass(frozen=True)
class RepairContext:
    """What a repair is given.

    model: our copy, pruned already, to be mended in place. layers: those of it that lost weights. dense: the network it
    was made of, to be read only. statistics: the dense network's pooled moments of each of the layers (none where the
    repair does not need them). calibration: the unlabeled images. choose: where the repair chooses the masks on its
    way, how; the model is then not pruned yet. remarks: to these the repair appends
    what there is to tell of how it went, for the result's notes.
    """

    model: nn.Module
    layers: Layers
    dense: nn.Module
    calibration: CalibrationSet
    statistics: Statistics = field(default_factory=dict)
    choose: Choose | None = None
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Fit:
    """A repair that begins by refitting weights: how strongly they are held, on how many images, and on how many
    columns for each input of a filter, drawn by a seed (none: on every position).
    """

    ridge: float
    images: int
    budget: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Repair(Named, ABC):
    """Mends a pruned network in place. What it needs and what it can do, it declares:

    needs_statistics: the dense network's moments. chooses_masks: it goes layer by layer and can ask a score on its way.
    needs_gradients: it trains, without labels. fit: the least squares it begins with, from which the diagnostics know
    what it leaves; else it may `respond`.
    """

    needs_statistics: ClassVar[bool] = False
    chooses_masks: ClassVar[bool] = False
    needs_gradients: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, context: RepairContext) -> None: ...

    @property
    def fit(self) -> Fit | None:
        return None

    def notes(self, model: nn.Module, lost: Layers) -> tuple[str, ...]:
        """What there is to say of this repair on this network: what it could not do, and why."""
        return ()

    def respond(self, response: Response) -> Response:
        """What the repair makes of a single layer, channel by channel; this one has no such form."""
        raise InputError(
            f"repair {self.name!r} has no per-channel form (no `respond` method), so the diagnostics cannot be "
            "conditioned on it; diagnose with another repair, such as 'cr+bn'"
        )


@dataclass(frozen=True)
class CustomRepair(Repair):
    """A bare function (context) -> None; it is given everything, the dense statistics too."""

    needs_statistics = True
    function: Callable[[RepairContext], None]

    def __call__(self, context: RepairContext) -> None:
        self.function(context)
