"""The paper's detector: a score on the diagnosis of single layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from repairability._torch import copy_of, reset_weights_
from repairability.allocation import Allocation
from repairability.calibration import CalibrationSet
from repairability.curves import Curves
from repairability.detect.result import Transition
from repairability.diagnostics import GRID, Diagnosis, diagnose
from repairability.errors import BudgetError
from repairability.network.layers import Layers, prunable_layers
from repairability.pruning import PruneConfig, needs_curves
from repairability.rules import Rule, allocate
from repairability.tables import percent
from repairability.transition import find_band, find_core, objective, overlap, sparsities_per_layer, transition_scores

SWEEP = tuple(round(0.90 + 0.005 * i, 4) for i in range(17))
SHUFFLES = 20


def find_by_cts(
    model: nn.Module,
    layers: Layers,
    calibration: CalibrationSet,
    sweep: tuple[float, ...],
    anchors: tuple[float, float],
    reference: str | Rule,
    strict: bool,
    null: bool,
    settings: PruneConfig,
) -> Transition:
    """G, T and CTS over the sweep, the core and the band; with `null`, how much of the core survives without
    information.
    """

    def detected(network: nn.Module, of: Layers) -> tuple[Transition, Curves, dict[float, Allocation]]:
        return _detected(network, of, calibration, sweep, anchors, reference, strict, settings)

    found, curves, theirs = detected(model, layers)
    if not null or found.core is None:
        return found
    random = np.random.default_rng(0)
    shares = []
    for _ in range(SHUFFLES):
        shuffled = curves.shuffled(random)
        ours = reachable(layers, sorted({*sweep, *anchors}), "rr", shuffled)
        other = _scored(sweep, anchors, theirs, ours, shuffled, interpolate=True)
        shares.append(overlap(found.core, other.core, sweep))
    untrained = copy_of(model)
    reset_weights_(untrained, seed=0)
    own = prunable_layers(untrained, types=settings.types, skip=settings.skip, only=settings.only)
    by_chance = overlap(found.core, detected(untrained, own)[0].core, sweep)
    return replace(found, null={"shuffled": float(np.median(shares)), "random weights": by_chance})


def _detected(
    model: nn.Module,
    layers: Layers,
    calibration: CalibrationSet,
    sweep: tuple[float, ...],
    anchors: tuple[float, float],
    reference: str | Rule,
    strict: bool,
    settings: PruneConfig,
) -> tuple[Transition, Curves, dict[float, Allocation]]:
    """The transition, the rr curves on the rule's own grid, and the reference's allocations.

    Strict: a reference that needs no data is known beforehand, so its sparsities join the grid of the one pass; one
    that works on curves costs a second pass.
    """
    points = sorted({*sweep, *anchors})
    grid: Any = GRID if isinstance(settings.grid, str) else settings.grid
    own = {name: list(grid[name] if isinstance(grid, Mapping) else grid) for name in layers.names}

    def measured(points_of: Mapping[str, Sequence[float]]) -> Diagnosis:
        repair = settings.conditioned_on or "cr+bn"
        return diagnose(model, calibration, grid=points_of, repair=repair, observe=settings.observe, layers=layers)

    if needs_curves(reference, {}):
        diagnosis = measured(own)
        theirs = reachable(layers, points, reference, diagnosis)
        curves = base = diagnosis.rr
        if strict:
            curves = measured(sparsities_per_layer(list(theirs.values()), own)).rr
    else:
        theirs = reachable(layers, points, reference, None)
        curves = measured(sparsities_per_layer(list(theirs.values()), own) if strict else own).rr
        base = curves.restricted(own)
    ours = reachable(layers, points, "rr", base)
    return _scored(sweep, anchors, theirs, ours, curves, interpolate=not strict), base, theirs


def reachable(
    layers: Layers, points: Sequence[float], rule: str | Rule, curves: Curves | Diagnosis | None
) -> dict[float, Allocation]:
    """The rule's allocation at each point that it can reach."""
    plans = {}
    for s in points:
        try:
            plans[s] = allocate(layers, sparsity=s, rule=rule, curves=curves)
        except BudgetError:
            continue
    return plans


def _scored(
    sweep: tuple[float, ...],
    anchors: tuple[float, float],
    theirs: Mapping[float, Allocation],
    ours: Mapping[float, Allocation],
    curves: Curves,
    *,
    interpolate: bool,
) -> Transition:
    low, high = anchors
    for s in anchors:
        if s not in ours:
            raise BudgetError(f"the rule rr cannot reach the anchor {percent(s)} on this grid; measure higher or lower")

    def j(plans: Mapping[float, Allocation], s: float) -> float:
        if s not in plans or (interpolate and any(plans[s][x] > curves.grid[x][-1] for x in plans[s])):
            return float("nan")  # out of reach, or above the grid's top, where nothing can be interpolated
        return objective(curves, plans[s], interpolate=interpolate)

    reference, measured = [j(theirs, s) for s in sweep], [j(ours, s) for s in sweep]
    scores = transition_scores(reference, measured, j(ours, low), j(ours, high))
    series: dict[str, Sequence[float]] = {
        "J(reference)": reference,
        "J(rr)": measured,
        "G": scores.gap.tolist(),
        "T": scores.stress.tolist(),
        "CTS": scores.cts.tolist(),
        "smoothed": scores.smoothed.tolist(),
    }
    return Transition(
        method="cts",
        sparsities=sweep,
        series={name: [None if np.isnan(x) else float(x) for x in values] for name, values in series.items()},
        core=find_core(sweep, scores.smoothed.tolist(), low=low),
        broad=find_band(sweep, scores.smoothed.tolist(), low=low),
        unreachable={
            name: [s for s in sweep if s not in plans]
            for name, plans in (("reference", theirs), ("rr", ours))
            if any(s not in plans for s in sweep)
        },
    )
