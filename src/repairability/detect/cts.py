"""The paper's detector: a score on the diagnosis of single layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from repairability._torch import copy_of, reset_weights_
from repairability.allocation import Allocation
from repairability.calibration import CalibrationSet
from repairability.curves import Curves
from repairability.detect.result import Transition
from repairability.diagnostics import GRID, Diagnosis
from repairability.errors import BudgetError
from repairability.network.layers import Layers
from repairability.pruning import PruneConfig, Recipe, measurement_for
from repairability.rules import RuleLike, allocate, get_rule
from repairability.tables import percent
from repairability.transition import find_band, find_core, objective, overlap, sparsities_per_layer, transition_scores

SWEEP = tuple(round(0.90 + 0.005 * i, 4) for i in range(17))
SHUFFLES = 20


@dataclass(frozen=True)
class Detector:
    """G, T and CTS over a sweep, between two anchors, of rr against a reference rule, on the same images throughout."""

    sweep: tuple[float, ...]
    anchors: tuple[float, float]
    reference: RuleLike
    strict: bool
    settings: PruneConfig
    calibration: CalibrationSet

    def find(self, model: nn.Module, layers: Layers, *, null: bool) -> Transition:
        """The core and the band; with `null`, how much of the core survives without information."""
        transition, curves, theirs = self._detected(model, layers)
        if not null or transition.core is None:
            return transition
        random = np.random.default_rng(0)
        shares = []
        for _ in range(SHUFFLES):
            shuffled = curves.shuffled(random)
            ours = reachable(layers, self._points(), "rr", shuffled)
            other = self._scored(theirs, ours, shuffled, interpolate=True)
            shares.append(overlap(transition.core, other.core, self.sweep))
        untrained = copy_of(model)
        reset_weights_(untrained, seed=0)
        by_chance, _, _ = self._detected(untrained, layers.on(untrained))
        same = overlap(transition.core, by_chance.core, self.sweep)
        return replace(transition, null={"shuffled": float(np.median(shares)), "random weights": same})

    def _points(self) -> list[float]:
        return sorted({*self.sweep, *self.anchors})

    def _detected(self, model: nn.Module, layers: Layers) -> tuple[Transition, Curves, dict[float, Allocation]]:
        """The transition, the rr curves on the rule's own grid, and the reference's allocations.

        Strict: a reference that needs no data is known beforehand, so its sparsities join the grid of the one pass; one
        that works on curves costs a second pass.
        """
        points = self._points()
        grid = GRID if isinstance(self.settings.grid, str) else self.settings.grid
        own = {name: list(grid[name] if isinstance(grid, Mapping) else grid) for name in layers.names}

        def measured(grid: Mapping[str, Sequence[float]]) -> Diagnosis:
            wanted = measurement_for(Recipe("rr"), points, replace(self.settings, grid=grid))
            assert wanted is not None, "rr works on curves"
            return wanted.diagnose(model, self.calibration, layers)

        if get_rule(self.reference).works_on_curves({}):
            diagnosis = measured(own)
            theirs = reachable(layers, points, self.reference, diagnosis)
            curves = base = diagnosis.rr
            if self.strict:
                curves = measured(sparsities_per_layer(list(theirs.values()), own)).rr
        else:
            theirs = reachable(layers, points, self.reference, None)
            curves = measured(sparsities_per_layer(list(theirs.values()), own) if self.strict else own).rr
            base = curves.restricted(own)
        ours = reachable(layers, points, "rr", base)
        return self._scored(theirs, ours, curves, interpolate=not self.strict), base, theirs

    def _scored(
        self,
        theirs: Mapping[float, Allocation],
        ours: Mapping[float, Allocation],
        curves: Curves,
        *,
        interpolate: bool,
    ) -> Transition:
        low, high = self.anchors
        for s in self.anchors:
            if s not in ours:
                raise BudgetError(
                    f"the rule rr cannot reach the anchor {percent(s)} on this grid; measure higher or lower"
                )

        def j(plans: Mapping[float, Allocation], s: float) -> float:
            if s not in plans or (interpolate and any(plans[s][x] > curves.grid[x][-1] for x in plans[s])):
                return float("nan")  # out of reach, or above the grid's top, where nothing can be interpolated
            return objective(curves, plans[s], interpolate=interpolate)

        reference, measured = [j(theirs, s) for s in self.sweep], [j(ours, s) for s in self.sweep]
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
            sparsities=self.sweep,
            series={name: [None if np.isnan(x) else float(x) for x in values] for name, values in series.items()},
            core=find_core(self.sweep, scores.smoothed.tolist(), low=low),
            broad=find_band(self.sweep, scores.smoothed.tolist(), low=low),
            unreachable={
                name: [s for s in self.sweep if s not in plans]
                for name, plans in (("reference", theirs), ("rr", ours))
                if any(s not in plans for s in self.sweep)
            },
        )


def reachable(
    layers: Layers, points: Sequence[float], rule: RuleLike, curves: Curves | Diagnosis | None
) -> dict[float, Allocation]:
    """The rule's allocation at each point that it can reach."""
    plans = {}
    for s in points:
        try:
            plans[s] = allocate(layers, sparsity=s, rule=rule, curves=curves)
        except BudgetError:
            continue
    return plans
