"""Layers that a repair mends channel by channel, tried at the network's output."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from repairability.allocation import pruned_count
from repairability.diagnostics.measures import mended_channels
from repairability.diagnostics.output import Mended, OutputProbe
from repairability.diagnostics.scan import Scan
from repairability.masks import magnitude_mask
from repairability.network.layers import Layers
from repairability.progress import track
from repairability.repairs import Repair


def try_channels(probe: OutputProbe, layers: Layers, scans: Mapping[str, Scan], repair: Repair) -> None:
    """Every layer, its smallest weights gone, its channels mended as the repair responds: y = gain b + offset behind
    the BatchNorm b' = s b + t, where one follows, is gain b + (gain t + offset - t) / s before it.
    """
    for layer in track(layers, "trying layers at the output", len(layers)):
        scan, levels = scans[layer.name], {}
        if not scan.measured:
            continue
        gains, offsets = mended_channels(scan.sums, scan.bias, scan.norm, repair, shifts=scan.shifts)  # [K, C]
        tried = probe.tried(len(scan.grid))
        for gain, offset, k in zip(gains, offsets, scan.measured, strict=True):
            if k not in tried:
                continue
            if scan.norm is not None:
                s, t = scan.norm.scale(), scan.norm.shift()
                offset = torch.where(s != 0, (gain * t + offset - t) / torch.where(s != 0, s, 1.0), 0.0)
            count = pruned_count(layer.total, scan.grid[k])
            kept = torch.from_numpy(magnitude_mask(layer.magnitudes(), count)).view(layer.shape).to(layer.weight.device)
            filters = layer.filters(layer.weight.detach() * kept).double().cpu()
            # the layer adds its own bias to what the scaled filters give
            levels[k] = Mended(filters * gain.view(layer.groups, -1, 1), offset + (gain - 1) * scan.bias)
        probe.try_layer(layer.name, levels)
