"""diagnose: model and images in, curves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from repairability.calibration import CalibrationSet, Images
from repairability.curves import Curves, FloatArray
from repairability.diagnostics.diagnosis import MEASURES, Diagnosis
from repairability.diagnostics.fitted import diagnose_fit
from repairability.diagnostics.measures import measures
from repairability.diagnostics.scan import Scan, scan
from repairability.errors import InputError
from repairability.network.layers import Layers, prunable_layers
from repairability.repairs import Repair, get_repair
from repairability.repairs.reconstruct import fit_of
from repairability.repairs.response import name_of
from repairability.scores import Score, get_score

GRID = (0.70, 0.80, 0.85, 0.90, 0.925, 0.95, 0.975)
"""The paper's candidate sparsities."""


def diagnose(
    model: nn.Module,
    images: Images,
    *,
    grid: Sequence[float] | Mapping[str, Sequence[float]] = GRID,
    repair: str | Repair = "cr+bn",
    observe: str = "layer",
    layers: Layers | None = None,
    score: str | Score = "magnitude",
) -> Diagnosis:
    """Prune each layer alone to each sparsity of the grid, repair it, and measure what damage was done and is left.

    All of it in one forward pass of the dense model over the first 128 images; the model is only read. `grid` may
    differ per layer (a mapping). `observe="layer"` measures at the layer's own output, "norm" behind the BatchNorm that
    follows ("norm-or-layer": where there is one). `layers` are those of `prunable_layers`, unless chosen otherwise.
    Conditioned on `repair="reconstruct"` the curves follow from each layer's least squares on up to 1,024 images, for
    the weights that `score` would take; conditioned on any other repair, for the smallest ones.
    """
    function = get_repair(repair)
    chosen = prunable_layers(model) if layers is None else layers
    calibration = CalibrationSet.read(images)
    if isinstance(grid, str) or not isinstance(grid, (Mapping, Sequence, np.ndarray)):
        raise InputError(f"grid must be a list of sparsities or a mapping from layers to such lists, not {grid!r}")
    grids = grid if isinstance(grid, Mapping) else dict.fromkeys(chosen.names, grid)
    fit = fit_of(function)
    if fit is not None:
        if observe != "layer":
            raise InputError(f"repair {name_of(function)!r} is diagnosed at the layer's own output, not at {observe!r}")
        return diagnose_fit(model, calibration, grids, chosen, fit, get_score(score))
    found = scan(model, chosen, calibration, grids, observe)

    curves: dict[str, dict[str, FloatArray]] = {measure: {} for measure in MEASURES}
    for name, result in found.items():
        for measure, values in zip(MEASURES, _values(result, function), strict=True):
            curves[measure][name] = values
    points = {name: np.array(result.grid) for name, result in found.items()}
    return Diagnosis(
        raw=Curves("raw", points, curves["raw"]),
        residual=Curves("residual", points, curves["residual"]),
        rr=Curves("rr", points, curves["rr"]),
        repair=name_of(function),
        observe=observe,
        images=calibration.count,
        fingerprint=calibration.fingerprint,
        statistics={name: result.moments for name, result in found.items()},
    )


def _values(result: Scan, repair: Repair) -> list[FloatArray]:
    """raw, residual and rr over the layer's whole grid; a level that prunes nothing is set: 0, 0 and 1."""
    whole = [np.full(len(result.grid), unpruned) for unpruned in (0.0, 0.0, 1.0)]
    if result.measured:
        found = measures(result.sums, result.bias, result.norm, repair, shifts=result.shifts)
        for curve, values in zip(whole, found, strict=True):
            curve[list(result.measured)] = values.numpy()
    return whole
