"""BN: BatchNorm recalibration."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from torch import nn

from repairability._torch import (
    PLAIN_NORMS,
    Draws,
    Move,
    batch_norms,
    channels_last_,
    copy_of,
    moves_of,
    recalibrating_,
)
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, CalibrationSet
from repairability.network.layers import Layers
from repairability.network.norms import norms_of
from repairability.progress import track
from repairability.repairs.repair import Repair, RepairContext
from repairability.repairs.response import Response

SHORT = (2, 32)
"""Batches, and images in each, of the repair "bn-short": for trying a study out."""


@dataclass(frozen=True)
class BatchNormRepair(Repair):
    """Let the BatchNorm layers relearn their running statistics on unlabeled images, everything else in eval mode.

    The paper's: 20 batches of 128, momentum 0.1, starting from the dense statistics, of which q = 0.9^20 = 12 % remain.
    Where there are fewer images, batches come again; each runs through the network once.
    `momentum=None`: the plain average over the batches after a reset (q = 0).
    """

    batches: int = BN_BATCHES
    batch_size: int = BN_BATCH_SIZE
    momentum: float | None = 0.1

    @property
    def remaining(self) -> float:
        """q: the share of the old statistics that is left."""
        return 0.0 if self.momentum is None else float((1 - self.momentum) ** self.batches)

    def __call__(self, context: RepairContext) -> None:
        model, calibration = context.model, context.calibration
        if not batch_norms(model):
            warnings.warn(
                f"{type(model).__name__} has no BatchNorm: repair 'bn' has nothing to recalibrate", stacklevel=2
            )
            return
        if calibration.recalibration_cycles(self.batches, self.batch_size):
            warnings.warn(
                f"BatchNorm recalibration wants {self.batches * self.batch_size} images; it cycles over the "
                f"{len(calibration.recalibration_samples)} there are",
                stacklevel=2,
            )
        with channels_last_(model), recalibrating_(model, self.momentum) as network:
            norms = list(batch_norms(network).values())
            distinct = calibration.recalibration_samples.period(self.batch_size)
            repeats = distinct < self.batches and all(type(norm) in PLAIN_NORMS for norm in norms)
            seen: list[list[Move]] = []
            batches = calibration.recalibration(model, self.batches, self.batch_size)
            for i, batch in enumerate(track(batches, "recalibrating BatchNorm", self.batches)):
                if not repeats:
                    calibration.run(network, batch)
                    continue
                if i < distinct:
                    with moves_of(norms) as moves, Draws() as draws:  # type: ignore[no-untyped-call]
                        calibration.run(network, batch)
                    seen.append(moves)
                    repeats = not draws.found  # where it draws random numbers, no two passes of a batch are alike
                for move in seen[i % distinct]:
                    move.do_(self.momentum)

    def notes(self, model: nn.Module, lost: Layers) -> tuple[str, ...]:
        norms = norms_of(model)
        others = f" ({norms.others} left as they are)" if norms.others else ""
        if not norms.learned:
            return (f"{self.name} does nothing here: no BatchNorm with running statistics{others}",)
        return (f"{self.name} recalibrates {norms.learned} BatchNorm layers{others}",)

    def respond(self, response: Response) -> Response:
        """The norm behind the layer moves to the output's own statistics, as PyTorch's update does when the calibration
        set is one batch seen `batches` times; it divides by m - 1. Norms upstream see dense activations and are held.
        """
        if response.norm is None:
            return response
        q, m = self.remaining, response.pruned.count
        mean = q * response.norm.mean + (1 - q) * response.mean
        var = q * response.norm.var + (1 - q) * response.var * (m / max(1, m - 1))
        return replace(response, norm=replace(response.norm, mean=mean, var=var))


def recalibrated(model: nn.Module, calibration: CalibrationSet) -> nn.Module:
    """A copy whose BatchNorm layers relearned their statistics: also a dense network moves a little by that."""
    copy = copy_of(model)
    BatchNormRepair()(RepairContext(copy, Layers((), 0), model, calibration))
    return copy
