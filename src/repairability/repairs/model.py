"""repair_model: mend a network that someone pruned elsewhere."""

from __future__ import annotations

import torch
from torch import nn

from repairability._torch import copy_of
from repairability.calibration import CalibrationSet, Images
from repairability.errors import InputError
from repairability.network.layers import KINDS, Layers, prunable_layers
from repairability.repairs.response import Repair, apply_repair_
from repairability.repairs.statistics import measure_statistics


def repair_model(dense: nn.Module, pruned: nn.Module, images: Images, *, repair: str | Repair = "cr+bn") -> nn.Module:
    """A repaired copy of `pruned`; neither network is changed.

    The layers that lost weights are found by comparing: zero in `pruned`, not zero in `dense`. The first 128 images
    serve the statistics, up to 2,560 after them BatchNorm (a `CalibrationSet` says otherwise).
    """
    from repairability.repairs import get_repair

    function = get_repair(repair)
    lost = _layers_that_lost_weights(dense, pruned)
    calibration = CalibrationSet.read(images)
    statistics = measure_statistics(dense, lost, calibration) if getattr(function, "needs_statistics", True) else {}
    repaired = copy_of(pruned)
    own = prunable_layers(repaired, types=tuple(KINDS), skip=()).subset(lost.names)
    apply_repair_(function, repaired, own, statistics, calibration, dense=dense)
    return repaired


def _layers_that_lost_weights(dense: nn.Module, pruned: nn.Module) -> Layers:
    whole = prunable_layers(dense, types=tuple(KINDS), skip=())
    part = prunable_layers(pruned, types=tuple(KINDS), skip=())
    if whole.names != part.names:
        differing = sorted(set(whole.names) ^ set(part.names))
        raise InputError(f"the pruned network is not the dense one's: only one of them has {', '.join(differing[:5])}")
    for ours, theirs in zip(whole, part, strict=True):
        if ours.shape != theirs.shape:
            raise InputError(
                f"layer {ours.name!r} is {ours.shape} in the dense network and {theirs.shape} in the pruned"
            )
    lost = [
        ours.name
        for ours, theirs in zip(whole, part, strict=True)
        if bool(torch.any((theirs.weight == 0).cpu() & (ours.weight != 0).cpu()))
    ]
    if not lost:
        raise InputError("the pruned network lost no weights: nothing to repair")
    return whole.subset(lost)
