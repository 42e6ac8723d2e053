"""The curves of a repair that refits weights, in closed form from each layer's least-squares problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from repairability._torch import copy_of
from repairability.algebra.moments import LeastSquares
from repairability.algebra.sums import EPS
from repairability.algebra.surgeon import mask_of
from repairability.allocation import pruned_count
from repairability.calibration import CalibrationSet
from repairability.curves import Curves, FloatArray
from repairability.diagnostics.diagnosis import Diagnosis
from repairability.errors import InputError
from repairability.network.layers import Layers, layers_named
from repairability.repairs.reconstruct import Reconstruction, refitted
from repairability.repairs.walk import Station, walk
from repairability.scores import Score, SecondOrder


def diagnose_fit(
    model: nn.Module,
    calibration: CalibrationSet,
    grids: Mapping[str, Sequence[float]],
    layers: Layers,
    repair: Reconstruction,
    score: Score,
) -> Diagnosis:
    """raw and residual of each layer pruned alone, by `score`, and refitted: the mean over channels of
    E|a - y|^2 / (E a^2 + eps), with expectations pooled over samples and positions (a: the dense output). The paper's
    distance is a mean over samples of such ratios, which no Gram knows. rr is the ratio of the two.
    """
    copy = copy_of(model)  # a second network to halt in; its weights stay, so every layer sees dense inputs
    found: dict[str, tuple[FloatArray, FloatArray]] = {}
    chosen = layers_named(copy, layers.names)
    for station in walk(model, copy, chosen, calibration, images=repair.images):
        found[station.layer.name] = _curves(model, station, _grid(grids, station.layer.name), repair, score)
    points = {name: np.array(grids[name], dtype=float) for name in layers.names}
    raw = {name: found[name][0] for name in layers.names}
    residual = {name: found[name][1] for name in layers.names}
    rr = {name: np.where(raw[name] > 0, (residual[name] + EPS) / (raw[name] + EPS), 1.0) for name in layers.names}
    return Diagnosis(
        raw=Curves("raw", points, raw),
        residual=Curves("residual", points, residual),
        rr=Curves("rr", points, rr),
        repair=repair.name,
        observe="layer",
        images=min(repair.images, len(calibration)),
        fingerprint=calibration.fingerprint,
    )


def _grid(grids: Mapping[str, Sequence[float]], layer: str) -> list[float]:
    points = [float(s) for s in grids.get(layer, ())]
    if not points or sorted(set(points)) != points or not all(0 <= s <= 1 for s in points):
        raise InputError(f"the grid of layer {layer!r} must rise within [0, 1] and not be empty: {points}")
    return points


def _curves(
    model: nn.Module, station: Station, grid: list[float], repair: Reconstruction, score: Score
) -> tuple[FloatArray, FloatArray]:
    moments = station.moments()
    problem = station.problem(model, moments)
    plain = LeastSquares.of(moments, problem.weights, problem.unit, centred=False)
    bias = getattr(station.module, "bias", None)
    offset = 0.0 if bias is None else bias.detach().double().cpu().view(plain.power.shape)
    power = moments.power(centred=False) + EPS  # [G, R]
    counts = [pruned_count(station.layer.total, s) for s in grid]
    raw, residual = [], []
    for count, (mask, left) in zip(counts, _levels(problem, counts, repair, score), strict=True):
        if count == 0:
            raw.append(0.0)
            residual.append(0.0)
            continue
        masked = problem.weights * mask
        # E|y - (x'w + beta)|^2 = E|y - x'w|^2 - 2 beta (E y - m'w) + beta^2
        mean = (masked @ moments.mean_x[..., None]).squeeze(-1)
        error = plain.error(masked) - 2 * offset * (moments.mean_y - mean) + offset**2
        raw.append(float((error.clamp(min=0) / power).mean()))
        residual.append(float((left / power).mean()))
    return np.array(raw), np.array(residual)


def _levels(
    problem: LeastSquares, counts: Sequence[int], repair: Reconstruction, score: Score
) -> list[tuple[Tensor, Tensor]]:
    """Per count: the mask [G, R, K], and the error that is left per output [G, R].

    The surgeon's one trace holds every level: a filter that has lost k weights is left with the error of the fit on all
    inputs and the sum of its first k steps. Otherwise each level is fitted: y'y - b_S' G_SS^-1 b_S, and the ridge.
    """
    if not isinstance(score, SecondOrder):
        masks = [score(problem, count) for count in counts]
        return [(mask, problem.error(refitted(problem, mask, repair.ridge))) for mask in masks]
    trace = score.trace(problem)
    shape = problem.weights.shape
    everything = torch.ones_like(problem.weights, dtype=torch.bool)
    least = problem.error(refitted(problem, everything, repair.ridge))
    unit = problem.unit.square().clamp(min=torch.finfo(torch.float64).tiny)
    steps = torch.cat([torch.zeros(len(trace.increase), 1, dtype=torch.float64), trace.increase.cumsum(1)], 1)
    levels = []
    for count in counts:
        mask = mask_of(trace, count)
        lost = (~mask).sum(1)  # [G * R]
        levels.append((mask.view(shape), least + steps.gather(1, lost[:, None]).view(shape[:2]) / unit))
    return levels
