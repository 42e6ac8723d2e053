"""A detector that looks at the joint network: pruned, repaired and compared with the dense one on held-out images."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from repairability.comparison import Agreement
from repairability.detect.detector import SHUFFLES, Detector
from repairability.detect.result import Transition
from repairability.detect.shuffled import median_overlap
from repairability.detect.verdict import COMPARED, Agreements, agreement_transition, same
from repairability.diagnostics import Diagnosis
from repairability.errors import BudgetError
from repairability.network.samples import Samples
from repairability.progress import track
from repairability.pruning import RECIPES
from repairability.pruning.budget import Budget
from repairability.pruning.choose import Judge
from repairability.pruning.prune import Session
from repairability.transition import Interval

SWEEP = (0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.99)


@dataclass(frozen=True, eq=False)
class JointNetwork(Detector):
    """The network against what the rules make of it; an empty sweep is SWEEP, refined."""

    held_out: Samples

    def detect(self) -> Transition:
        return agreement_transition(self.agreements)

    def shuffled(self, core: Interval) -> float:
        curves, random = self.curves(sorted(self.agreements)), np.random.default_rng(0)
        shuffles = [self.session(replace(curves, rr=curves.rr.shuffled(random))) for _ in range(SHUFFLES)]
        return median_overlap(self.agreements, core, [partial(self.agreement, x, "rr") for x in shuffles])

    @property
    def rules(self) -> tuple[str, ...]:
        return COMPARED

    @cached_property
    def judge(self) -> Judge:
        return Judge(self.model, self.held_out, self.settings)

    @cached_property
    def agreements(self) -> Agreements:
        """Over the sweep; where it is refined also between the points where agreement changes most."""
        agreements = self.at(self.sweep or SWEEP)
        for _ in range(0 if self.sweep else 2):
            agreements |= self.at(midpoints(agreements))
        return agreements

    def at(self, points: Sequence[float]) -> dict[float, dict[str, Agreement]]:
        """Per sparsity, the agreement of the network pruned by each rule that reaches it."""
        agreements: dict[float, dict[str, Agreement]] = {s: {} for s in points}
        if not points:
            return agreements
        session, cells = self.session(self.curves(points)), list(itertools.product(points, COMPARED))
        for s, rule in track(cells, "pruning and comparing", len(cells)):
            agreement = self.agreement(session, rule, s)
            if agreement is not None:
                agreements[s][rule] = agreement
        return agreements

    def curves(self, points: Sequence[float]) -> Diagnosis:
        """Those of rr; the paper's grid is extended only as far as the points need."""
        return self.diagnosed(points, self.settings.grid)

    def session(self, curves: Diagnosis) -> Session:
        return Session(self.model, self.layers, self.calibration, (), self.settings, curves)

    def agreement(self, session: Session, rule: str, s: float) -> Agreement | None:
        """Of the network that a rule makes; None where it cannot reach the sparsity."""
        try:
            result = session.prune(RECIPES["paper"].with_parts(rule=rule, options=self.options(rule)), Budget(s))
        except BudgetError:
            return None
        return self.judge(result.model)[0]


def midpoints(agreements: Agreements) -> list[float]:
    """Between neighbours whose best agreement differs by more than 0.1, where there is room for another point."""
    best = {s: max(same(x) for x in agreements[s].values()) for s in sorted(agreements) if agreements[s]}
    return [round((a + b) / 2, 4) for a, b in itertools.pairwise(best) if best[a] - best[b] > 0.1 and b - a > 0.01]
