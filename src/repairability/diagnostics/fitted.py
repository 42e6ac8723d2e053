"""The curves of a repair that refits weights, in closed form from each layer's least-squares problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from repairability.algebra.least_squares import LeastSquares
from repairability.algebra.moments import InputMoments
from repairability.algebra.sums import EPS
from repairability.algebra.targets import joined
from repairability.allocation import pruned_count
from repairability.calibration import CalibrationSet
from repairability.curves import FloatArray
from repairability.diagnostics.output import Mended, OutputProbe
from repairability.diagnostics.scan import checked_grid
from repairability.network.layers import Layers
from repairability.repairs.repair import Fit
from repairability.repairs.station import Station, fixed_bias
from repairability.repairs.walk import walk
from repairability.scores import Score
from repairability.scores.score import lowest_go

FILTERS, OF_WIDE = 64, 32
"""So many filters of a layer tell its residual curve, where an allocation is made of it; fewer where they are wide."""

BLOCK = 1200
"""Wider filters are diagnosed in blocks of their inputs: the curves keep their order, at a fraction of the price."""

WIDE = 1024
"""Inputs of a filter from which on its products with a Gram are dear."""

ROUGH = 3
"""Conjugate gradients for a layer that is tried at the output."""


def diagnose_fit(
    model: nn.Module,
    calibration: CalibrationSet,
    grids: Mapping[str, Sequence[float]],
    layers: Layers,
    fit: Fit,
    score: Score,
    probe: OutputProbe | None = None,
) -> dict[str, tuple[FloatArray, FloatArray]]:
    """raw and residual of each layer pruned alone, by `score`, and refitted: the mean over channels of
    E|a - y|^2 / (E a^2 + eps), with expectations pooled over samples and positions (a: the dense output). The paper's
    distance (eq:distance) is a mean over samples of such ratios, which no Gram knows. The probe, where there is one,
    tries each layer so.
    """
    stations = walk(model, model, layers, calibration, images=fit.images)  # nothing is written: dense inputs for all
    curves = {x.layer.name: _curves(x, checked_grid(x.layer.name, grids), fit, score, probe) for x in stations}
    return {name: curves[name] for name in layers.names}


def _curves(
    station: Station, grid: Sequence[float], fit: Fit, score: Score, probe: OutputProbe | None
) -> tuple[FloatArray, FloatArray]:
    if fit.budget is None:
        moments = station.moments()
    else:
        moments = station.checked(station.targets(fit.budget, fit.seed, widest=BLOCK).moments())
    problem = station.problem(moments)
    plain = LeastSquares.of(moments, problem.weights, problem.unit, centred=False)
    blocks, groups = problem.blocks, station.layer.groups
    nothing = torch.zeros(station.layer.outputs, dtype=torch.float64)

    def by_group(bias: Tensor | None) -> Tensor:
        """A bias [C] as each group's, or block's share of it, [G, R]."""
        whole = nothing if bias is None else bias.double().cpu()
        return whole.view(groups, -1).repeat_interleave(blocks, 0) / blocks

    offset, beta = by_group(station.bias_place), by_group(fixed_bias(station.pairs[0].call))
    # the moments are without a bias that stays: E(y + beta)^2 = E y^2 + 2 beta E y + beta^2
    power = moments.power(centred=False) + EPS + 2 * beta * moments.mean_y + beta**2
    if probe is not None:
        probe.try_layer(station.layer.name, _tried(station, problem, moments, grid, fit, probe, offset, power))
    some = _some_filters(problem) if probe is not None else slice(None)
    part, plain, offset, power = problem.of_filters(some), plain.of_filters(some), offset[:, some], power[:, some]
    wanted = moments.mean_y[:, some]
    counts = [pruned_count(part.weights.numel(), s) for s in grid]
    raw, residual = [], []
    for count, (mask, left) in zip(counts, score.levels(part, counts, fit.ridge), strict=True):
        if count == 0:
            raw.append(0.0)
            residual.append(0.0)
            continue
        masked = part.weights * mask
        # E|y - (x'w + beta)|^2 = E|y - x'w|^2 - 2 beta (E y - m'w) + beta^2
        mean = (masked @ moments.mean_x[..., None]).squeeze(-1)
        error = plain.error(masked) - 2 * offset * (wanted - mean) + offset**2
        raw.append(float((error.clamp(min=0) / power).mean()))
        residual.append(float((left / power).mean()))
    return np.array(raw), np.array(residual)


def _some_filters(problem: LeastSquares) -> slice:
    """Evenly chosen filters that stand for all of them where an allocation is made of their curve."""
    _, filters, inputs = problem.weights.shape
    return slice(None, None, max(1, filters // (OF_WIDE if inputs > WIDE else FILTERS)))


def _tried(
    station: Station,
    problem: LeastSquares,
    moments: InputMoments,
    grid: Sequence[float],
    fit: Fit,
    probe: OutputProbe,
    offset: Tensor,
    power: Tensor,
) -> dict[int, Mended]:
    """The layer at some levels, to be tried at the network's output: its weakest weights gone, by w^2 E x^2, the others
    roughly refitted. A trial tells how much an error of this layer is felt, so it need not be the best one; what it is
    stands beside it.
    """
    best = problem.best(fit.ridge)
    worth = best.square() * problem.square[:, None] * problem.unit.square()[..., None]
    levels = {}
    for k in probe.tried(len(grid)):
        count = pruned_count(problem.weights.numel(), grid[k])
        if not count:
            continue
        mask = lowest_go(worth, count)
        fitted = problem.refitted(mask, fit.ridge, start=best * mask, steps=ROUGH)
        more = (moments.shift(fitted, station.shifts) - offset).view(station.layer.groups, problem.blocks, -1).sum(1)
        left = float((problem.rough_error(fitted, fit.ridge) / power).mean())
        levels[k] = Mended(joined(fitted, problem.blocks), more.flatten(), left)
    return levels
