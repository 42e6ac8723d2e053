"""diagnose: model and images in, curves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from repairability._torch import threads
from repairability.algebra.sums import EPS
from repairability.calibration import CalibrationSet, Images
from repairability.curves import MEASURES, Curves, FloatArray
from repairability.diagnostics.diagnosis import Diagnosis
from repairability.diagnostics.fitted import diagnose_fit
from repairability.diagnostics.measures import measures
from repairability.diagnostics.scan import Scan, scan
from repairability.errors import InputError
from repairability.network.batches import Forward
from repairability.network.discover import prunable_layers
from repairability.network.layers import Layers
from repairability.repairs import Repair, RepairLike, get_repair
from repairability.scores import ScoreLike, get_score

GRID = (0.70, 0.80, 0.85, 0.90, 0.925, 0.95, 0.975)
"""The paper's candidate sparsities."""


def diagnose(
    model: nn.Module,
    images: Images,
    *,
    grid: Sequence[float] | Mapping[str, Sequence[float]] = GRID,
    repair: RepairLike = "cr+bn",
    observe: str = "layer",
    layers: Layers | None = None,
    score: ScoreLike = "magnitude",
    forward: Forward | None = None,
) -> Diagnosis:
    """Prune each layer alone to each sparsity of the grid, repair it, and measure what damage was done and is left.

    All of it in one forward pass of the dense model over the first 128 images; the model is only read. `grid` may
    differ per layer (a mapping). `observe="layer"` measures at the layer's own output, "norm" behind the BatchNorm that
    follows ("norm-or-layer": where there is one). `layers` are those of `prunable_layers`, unless chosen otherwise.
    Conditioned on `repair="reconstruct"` the curves follow from each layer's least squares on up to 1,024 images, for
    the weights that `score` would take; conditioned on any other repair, for the smallest ones.
    """
    mend = get_repair(repair)
    calibration = CalibrationSet.read(images, model=model, forward=forward)
    if layers is None:
        with threads(1):  # a few samples, as in `scan`
            layers = prunable_layers(model, batch=next(calibration.batches(model)), forward=calibration.forward)
    chosen = layers
    if isinstance(grid, str) or not isinstance(grid, (Mapping, Sequence, np.ndarray)):
        raise InputError(f"grid must be a list of sparsities or a mapping from layers to such lists, not {grid!r}")
    grids = grid if isinstance(grid, Mapping) else dict.fromkeys(chosen.names, grid)
    if mend.fit is not None:
        if observe != "layer":
            raise InputError(f"repair {mend.name!r} is diagnosed at the layer's own output, not at {observe!r}")
        fitted = diagnose_fit(model, calibration, grids, chosen, mend.fit, get_score(score))
        points = {name: np.array(grids[name], dtype=float) for name in fitted}
        values: dict[str, tuple[FloatArray, ...]] = {
            name: (raw, residual, _ratio(raw, residual)) for name, (raw, residual) in fitted.items()
        }
        seen, statistics = min(mend.fit.images, len(calibration)), None
    else:
        scans = scan(model, chosen, calibration, grids, observe)
        points = {name: np.array(result.grid) for name, result in scans.items()}
        values = {name: _values(result, mend) for name, result in scans.items()}
        seen, statistics = calibration.count, {name: result.moments for name, result in scans.items()}
    raw, residual, rr = (
        Curves(measure, points, {name: values[name][i] for name in points}) for i, measure in enumerate(MEASURES)
    )
    return Diagnosis(raw, residual, rr, mend.name, observe, seen, calibration.fingerprint, statistics)


def _ratio(raw: FloatArray, residual: FloatArray) -> FloatArray:
    """rr (eq:repair_ratio) = (residual + eps) / (raw + eps), and 1 where nothing was damaged."""
    return np.where(raw > 0, (residual + EPS) / (raw + EPS), 1.0)


def _values(result: Scan, repair: Repair) -> tuple[FloatArray, ...]:
    """raw, residual and rr over the layer's whole grid; a level that prunes nothing is set: 0, 0 and 1."""
    whole = tuple(np.full(len(result.grid), unpruned) for unpruned in (0.0, 0.0, 1.0))
    if result.measured:
        measured = measures(result.sums, result.bias, result.norm, repair, shifts=result.shifts)
        for curve, values in zip(whole, measured, strict=True):
            curve[list(result.measured)] = values.numpy()
    return whole
