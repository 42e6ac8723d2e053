"""diagnose: model and images in, curves out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from repairability._torch import alone, check_finite, state_sums
from repairability.algebra.sums import EPS
from repairability.calibration import CalibrationSet, Images
from repairability.comparison import Distance
from repairability.curves import MEASURES, OUTPUT, Curves, FloatArray
from repairability.diagnostics.channels import try_channels
from repairability.diagnostics.diagnosis import Diagnosis
from repairability.diagnostics.fitted import diagnose_fit
from repairability.diagnostics.literal import literal_residuals
from repairability.diagnostics.measures import measures as formulae
from repairability.diagnostics.output import BATCH, OutputProbe
from repairability.diagnostics.scan import LITERAL, Scan, scan
from repairability.errors import InputError, unknown
from repairability.network.batches import Forward
from repairability.network.discover import prunable_layers
from repairability.network.layers import Layers
from repairability.network.outputs import Output
from repairability.repairs import Repair, RepairLike, get_repair
from repairability.scores import ScoreLike, get_score

PROBED = 896
"""Samples behind the statistics' that may try layers at the network's output, for a repair that fits nothing."""

NEAREST_NORM = "norm-or-layer"
"""Where a repair that also moves the BatchNorm behind a layer shows all it does."""

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
    measures: Collection[str] = MEASURES,
    output: Output = None,
    distance: Distance = None,
) -> Diagnosis:
    """Prune each layer alone to each sparsity of the grid, repair it, and measure what damage was done and is left.

    All of it in one forward pass of the dense model over the first 128 images; the model is only read. `grid` may
    differ per layer (a mapping). `observe="layer"` measures at the layer's own output, "norm" behind the BatchNorm that
    follows ("norm-or-layer": where there is one). `layers` are those of `prunable_layers`, unless chosen otherwise.
    Conditioned on `repair="reconstruct"` the curves follow from each layer's least squares on up to 1,024 images, for
    the weights that `score` would take; conditioned on any other repair, for the smallest ones.

    With "output" among the `measures`, samples that are not fitted to also run through the network with one layer
    pruned and mended, and their outputs are compared with the dense ones (`output` and `distance` as in `agreement`):
    about one pass more. It is the one measure in which layers compare.

    `observe="literal"`: at the layer's own output, but of a copy of the network for each layer and level to which the
    whole repair is applied, as the paper has it; so the BatchNorms upstream move too. Else these are held, and at the
    layer BatchNorm counts for nothing. Much slower.
    """
    mend = get_repair(repair)
    check_finite(model)
    calibration = CalibrationSet.read(images, model=model, forward=forward)
    if layers is None:
        with alone():  # a few samples, as in `scan`
            layers = prunable_layers(model, batch=next(calibration.batches(model)), forward=calibration.forward)
    chosen = layers
    if isinstance(grid, str) or not isinstance(grid, (Mapping, Sequence, np.ndarray)):
        raise InputError(f"grid must be a list of sparsities or a mapping from layers to such lists, not {grid!r}")
    grids = grid if isinstance(grid, Mapping) else dict.fromkeys(chosen.names, grid)
    for measure in measures:
        if measure not in (*MEASURES, OUTPUT):
            raise unknown("measure", measure, (*MEASURES, OUTPUT))
    probe, fit = None, mend.fit
    if OUTPUT in measures:
        known = min(len(calibration), calibration.count + PROBED if fit is None else fit.images)
        apart = min(calibration.count, known) if fit is None else known // 2
        begin = apart if known - apart >= BATCH else 0  # too few to hold any out: the same samples serve for both
        fit = None if fit is None else replace(fit, images=apart if begin else known, budget=_lean(fit.budget))
        probe = OutputProbe(model, calibration, chosen, (begin, known), output=output, distance=distance)
    if fit is not None:
        if observe != "layer":
            raise InputError(f"repair {mend.name!r} is diagnosed at the layer's own output, not at {observe!r}")
        fitted = diagnose_fit(model, calibration, grids, chosen, fit, get_score(score), probe)
        points = {name: np.array(grids[name], dtype=float) for name in fitted}
        values: dict[str, tuple[FloatArray, ...]] = {
            name: (raw, residual, _ratio(raw, residual)) for name, (raw, residual) in fitted.items()
        }
        seen, statistics = min(fit.images, len(calibration)), None
    else:
        scans = scan(model, chosen, calibration, grids, observe)
        points = {name: np.array(result.grid) for name, result in scans.items()}
        values = {name: _values(result, mend) for name, result in scans.items()}
        if observe == LITERAL:
            measured = {name: result.grid for name, result in scans.items()}
            left = literal_residuals(model, calibration, chosen, measured, mend)
            values = {name: (raw, left[name], _ratio(raw, left[name])) for name, (raw, _, _) in values.items()}
        seen, statistics = calibration.count, {name: result.moments for name, result in scans.items()}
        if probe is not None:
            felt = scans if observe == NEAREST_NORM else scan(model, chosen, calibration, grids, NEAREST_NORM)
            try_channels(probe, chosen, felt, mend)
    raw, residual, rr = (
        Curves(measure, points, {name: values[name][i] for name in points}) for i, measure in enumerate(MEASURES)
    )
    felt_at_end = None if probe is None else Curves(OUTPUT, points, probe.curves(residual))
    about = (mend.name, observe, seen, calibration.fingerprint, statistics)
    state = None if statistics is None else state_sums(model)
    return Diagnosis(raw, residual, rr, *about, output=felt_at_end, state=state)


def _lean(budget: float | None) -> float | None:
    """A quarter of the columns that a fit takes: an allocation is made of the curves, and no weight."""
    return None if budget is None else budget / 4


def _ratio(raw: FloatArray, residual: FloatArray) -> FloatArray:
    """rr (eq:repair_ratio) = (residual + eps) / (raw + eps), and 1 where nothing was damaged."""
    return np.where(raw > 0, (residual + EPS) / (raw + EPS), 1.0)


def _values(result: Scan, repair: Repair) -> tuple[FloatArray, ...]:
    """raw, residual and rr over the layer's whole grid; a level that prunes nothing is set: 0, 0 and 1."""
    whole = tuple(np.full(len(result.grid), unpruned) for unpruned in (0.0, 0.0, 1.0))
    if result.measured:
        measured = formulae(result.sums, result.bias, result.norm, repair, shifts=result.shifts)
        for curve, values in zip(whole, measured, strict=True):
            curve[list(result.measured)] = values.numpy()
    return whole
