"""The paper's detector: a score on the diagnosis of single layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from repairability import transition
from repairability.allocation import Allocation
from repairability.curves import Curves
from repairability.detect.detector import SHUFFLES, Detector
from repairability.detect.result import Transition
from repairability.diagnostics import GRID, Diagnosis
from repairability.errors import BudgetError
from repairability.pruning import grid_for
from repairability.rules import RuleLike, allocate, get_rule
from repairability.tables import percent

SWEEP = tuple(round(0.90 + 0.005 * i, 4) for i in range(17))

Plans = Mapping[float, Allocation]
"""A rule's allocation at each point that it can reach."""


@dataclass(frozen=True, eq=False)
class SingleLayers(Detector):
    """G, T and CTS over a sweep, between two anchors, of rr against a reference rule."""

    anchors: tuple[float, float]
    reference: RuleLike
    strict: bool

    def detect(self) -> Transition:
        curves, own, theirs = self.measured
        return self._scored(theirs, self.reachable("rr", own), curves, interpolate=not self.strict)

    def shuffled(self, core: transition.Interval) -> float:
        (_, own, theirs), random, shares = self.measured, np.random.default_rng(0), []
        for _ in range(SHUFFLES):
            curves = own.shuffled(random)
            other = self._scored(theirs, self.reachable("rr", curves), curves, interpolate=True)
            shares.append(transition.overlap(core, other.core, self.sweep))
        return float(np.median(shares))

    @property
    def points(self) -> list[float]:
        return sorted({*self.sweep, *self.anchors})

    @property
    def rules(self) -> tuple[RuleLike, ...]:
        return self.reference, "rr"

    @property
    def grid(self) -> Sequence[float] | Mapping[str, Sequence[float]]:
        """The paper's is its seven sparsities: what they cannot reach is told. "auto" goes on as for `prune`."""
        given = self.settings.grid
        if not isinstance(given, str):
            return given
        return GRID if given == "paper" else grid_for(self.points, given)

    @cached_property
    def measured(self) -> tuple[Curves, Curves, Plans]:
        """The rr curves that J is read from, those on the rule's own grid, and the reference's allocations.

        Strict: a reference that needs no data is known beforehand, so its sparsities join the grid of the one pass; one
        that works on curves costs a second pass.
        """
        grid = self.grid
        own = {name: list(grid[name] if isinstance(grid, Mapping) else grid) for name in self.layers.names}
        on_curves = get_rule(self.reference).works_on_curves(self.options(self.reference))
        first = self.diagnosed(self.points, own) if on_curves else None
        theirs = self.reachable(self.reference, first)
        wanted = transition.sparsities_per_layer(list(theirs.values()), own) if self.strict else own
        last = self.diagnosed(self.points, wanted) if first is None or self.strict else first
        return last.rr, (last if first is None else first).rr.restricted(own), theirs

    def reachable(self, rule: RuleLike, curves: Curves | Diagnosis | None) -> Plans:
        plans = {}
        for s in self.points:
            try:
                plans[s] = allocate(self.layers, sparsity=s, rule=rule, curves=curves, **self.options(rule))
            except BudgetError:
                continue
        return plans

    def _scored(self, theirs: Plans, ours: Plans, curves: Curves, *, interpolate: bool) -> Transition:
        for s in self.anchors:
            if s not in ours:
                words = f"the rule rr cannot reach the anchor {percent(s)} on this grid"
                raise BudgetError(f"{words}; measure higher or lower")

        def j(plans: Plans, s: float) -> float:
            if s not in plans or (interpolate and any(plans[s][x] > curves.grid[x][-1] for x in plans[s])):
                return float("nan")  # out of reach, or above the grid's top, where nothing can be interpolated
            return transition.objective(curves, plans[s], interpolate=interpolate)

        low, high = self.anchors
        reference, measured = [j(theirs, s) for s in self.sweep], [j(ours, s) for s in self.sweep]
        scores = transition.transition_scores(reference, measured, j(ours, low), j(ours, high))
        series = {"J(reference)": reference, "J(rr)": measured, **{name: x.tolist() for name, x in scores.items()}}
        unreachable = {
            name: [s for s in self.sweep if s not in plans] for name, plans in (("reference", theirs), ("rr", ours))
        }
        return Transition(
            method="cts",
            sparsities=self.sweep,
            series={name: [None if np.isnan(x) else x for x in values] for name, values in series.items()},
            core=transition.find_core(self.sweep, series["smoothed"], low=low),
            broad=transition.find_band(self.sweep, series["smoothed"], low=low),
            unreachable={name: missed for name, missed in unreachable.items() if missed},
        )
