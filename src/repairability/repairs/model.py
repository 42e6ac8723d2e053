"""repair_model: mend a network that someone pruned elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from repairability._torch import check_finite, copy_of
from repairability.calibration import CalibrationSet, Images
from repairability.errors import InputError
from repairability.network.candidates import refittable_layers
from repairability.network.layers import Layers
from repairability.repairs.repair import RepairContext
from repairability.repairs.statistics import measure_statistics

if TYPE_CHECKING:
    from repairability.repairs import RepairLike


def repair_model(dense: nn.Module, pruned: nn.Module, images: Images, *, repair: RepairLike = "cr+bn") -> nn.Module:
    """A repaired copy of `pruned`; neither network is changed.

    The layers that lost weights are found by comparing: zero in `pruned`, not zero in `dense`. The first 128 images
    serve the statistics, up to 2,560 after them BatchNorm (a `CalibrationSet` says otherwise).
    """
    from repairability.repairs import get_repair

    mend = get_repair(repair)
    check_finite(dense, "the dense network")
    check_finite(pruned, "the pruned network")
    lost = _layers_that_lost_weights(dense, pruned)
    calibration = CalibrationSet.read(images, model=dense)
    statistics = measure_statistics(dense, lost, calibration) if mend.needs_statistics else {}
    repaired = copy_of(pruned)
    mend(RepairContext(repaired, lost.on(repaired), dense, calibration, statistics))
    check_finite(repaired, f"the network that repair {mend.name!r} left")
    return repaired


def _layers_that_lost_weights(dense: nn.Module, pruned: nn.Module) -> Layers:
    whole, part = (refittable_layers(x, shared=True) for x in (dense, pruned))
    if whole.names != part.names:
        differing = sorted(set(whole.names) ^ set(part.names))
        raise InputError(f"the pruned network is not the dense one's: only one of them has {', '.join(differing[:5])}")
    lost = [
        layer.name
        for layer, other in zip(whole, whole.on(pruned), strict=True)
        if bool(torch.any((other.weight == 0).cpu() & (layer.weight != 0).cpu()))
    ]
    if not lost:
        raise InputError("the pruned network lost no weights: nothing to repair")
    return whole.subset(lost)
