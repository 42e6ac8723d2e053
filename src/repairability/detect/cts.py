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
from repairability.diagnostics import GRID, diagnose
from repairability.errors import BudgetError
from repairability.layers import Layers, prunable_layers
from repairability.pipeline import PruneConfig, needs_curves
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
    points = sorted({*sweep, *anchors})
    own_grid: Any = GRID if isinstance(settings.grid, str) else settings.grid
    repair = settings.conditioned_on or "cr+bn"

    def measured(network: nn.Module, of: Layers, grid: Any) -> Curves:
        return diagnose(network, calibration, grid=grid, repair=repair, observe=settings.observe, layers=of).rr

    def detected(network: nn.Module, of: Layers, exact: bool) -> tuple[Transition, Curves]:
        # A reference that needs no data is known beforehand, so its sparsities join the grid of the same one pass.
        first = {} if needs_curves(reference, {}) else reachable(of, points, reference, None)
        grid = sparsities_per_layer(list(first.values()), own_grid) if exact and first else own_grid
        curves = measured(network, of, grid)
        base = curves.restricted(own_grid) if not isinstance(own_grid, Mapping) else curves
        theirs = first or reachable(of, points, reference, base)
        ours = reachable(of, points, "rr", base)
        if exact and not first:
            curves = measured(network, of, sparsities_per_layer([*theirs.values(), *ours.values()]))
        return _cts(sweep, anchors, theirs, ours, curves, interpolate=not exact), base

    found, base = detected(model, layers, strict)
    if not null or found.core is None:
        return found
    shares = {}
    random = np.random.default_rng(0)
    cores = []
    theirs = {} if needs_curves(reference, {}) else reachable(layers, points, reference, None)
    for _ in range(SHUFFLES):
        names = list(base)
        order = random.permutation(len(names))
        shuffled = Curves(
            "rr",
            {name: base.grid[names[j]] for name, j in zip(names, order, strict=True)},
            {name: base[names[j]] for name, j in zip(names, order, strict=True)},
        )
        ours = reachable(layers, points, "rr", shuffled)
        against = theirs or reachable(layers, points, reference, shuffled)
        cores.append(_cts(sweep, anchors, against, ours, shuffled, interpolate=True).core)
    shares["shuffled"] = float(np.median([overlap(found.core, core, sweep) for core in cores]))
    untrained = copy_of(model)
    reset_weights_(untrained, seed=0)
    own = prunable_layers(untrained, types=settings.types, skip=settings.skip, only=settings.only)
    shares["random weights"] = overlap(found.core, detected(untrained, own, strict)[0].core, sweep)
    return replace(found, null=shares)


def reachable(
    layers: Layers, points: Sequence[float], rule: str | Rule, curves: Curves | None
) -> dict[float, Allocation]:
    plans = {}
    for s in points:
        try:
            plans[s] = allocate(layers, sparsity=s, rule=rule, curves=curves)
        except BudgetError:
            continue
    return plans


def _cts(
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
        return objective(curves, plans[s], interpolate=interpolate) if s in plans else float("nan")

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
