"""BN: BatchNorm recalibration."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from repairability._torch import Draws, batch_norms, channels_last_, copy_of, recalibrating_
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, CalibrationSet
from repairability.network.layers import Layers
from repairability.network.norms import norms_of
from repairability.progress import track
from repairability.repairs.repair import Repair, RepairContext
from repairability.repairs.response import Response

SHORT = (2, 32)
"""Batches, and images in each, of the repair "bn-short": for trying a study out."""


PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Norms that are known to move as `_Move` does."""


@dataclass(frozen=True)
class _Move:
    """One call of a norm: the statistics of the batch, toward which its running ones go. In train mode a batch is
    normalised by its own statistics, so a batch that comes again gives the same ones, whatever was learned meanwhile.
    """

    norm: _BatchNorm
    mean: Tensor
    var: Tensor

    def do_(self, momentum: float | None) -> None:
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked += 1
        share = 1 / int(norm.num_batches_tracked) if momentum is None else momentum
        for running, own in ((norm.running_mean, self.mean), (norm.running_var, self.var)):
            running.copy_((1 - share) * running.double() + share * own.double())


@contextmanager
def _watched(norms: Sequence[_BatchNorm]) -> Iterator[list[_Move]]:
    """The calls of the norms in this block; their statistics are then as before. With momentum 1 they become the
    batch's in each call.
    """
    before = [(norm, norm.momentum, [buffer.clone() for buffer in norm.buffers()]) for norm in norms]
    moves: list[_Move] = []

    def note(norm: _BatchNorm, _inputs: object, _output: object) -> None:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        moves.append(_Move(norm, norm.running_mean.clone(), norm.running_var.clone()))

    hooks = [norm.register_forward_hook(note) for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 1.0
        yield moves
    finally:
        for hook in hooks:
            hook.remove()
        for norm, momentum, buffers in before:
            norm.momentum = momentum
            for buffer, was in zip(norm.buffers(), buffers, strict=True):
                buffer.copy_(was)


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
            repeats = distinct < self.batches and all(type(norm) in PLAIN for norm in norms)
            seen: list[list[_Move]] = []
            batches = calibration.recalibration(model, self.batches, self.batch_size)
            for i, batch in enumerate(track(batches, "recalibrating BatchNorm", self.batches)):
                if not repeats:
                    calibration.run(network, batch)
                    continue
                if i < distinct:
                    with _watched(norms) as moves, Draws() as draws:  # type: ignore[no-untyped-call]
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
