"""A detector that looks at the joint network: pruned, repaired and compared with the dense one on held-out images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from repairability._torch import copy_of, reset_weights_
from repairability.calibration import HELD_OUT, CalibrationSet, Images
from repairability.detect.cts import SHUFFLES, reachable
from repairability.detect.result import Transition
from repairability.detect.shuffled import Ask, median_overlap
from repairability.detect.verdict import COMPARED, Agreements, agreement_transition
from repairability.diagnostics import Diagnosis
from repairability.evaluation import Agreement
from repairability.progress import track
from repairability.pruning import PruneConfig, Recipe, measurement_for
from repairability.pruning.choose import Judge
from repairability.pruning.prune import Session
from repairability.transition import Interval, overlap

SWEEP = (0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.99)


def find_by_agreement(
    model: nn.Module, images: Images, sweep: tuple[float, ...], settings: PruneConfig, *, refine: bool, null: bool
) -> Transition:
    """Agreement with the dense network over the sweep; with `refine` also between the points where it changes most."""
    calibration, held_out = settings.calibration(images, held_out=HELD_OUT).split()
    comparison = _Comparison(model, calibration, held_out, settings)
    agreements = comparison.at(sweep)
    if refine:
        for _ in range(2):
            agreements |= comparison.at(_midpoints(agreements))
    result = agreement_transition(agreements)
    if not null or result.core is None:
        return result
    untrained = copy_of(model)
    reset_weights_(untrained, seed=0)
    random = _Comparison(untrained, calibration, held_out, settings)
    other = agreement_transition(random.at(result.sparsities))
    shares = {
        "shuffled": _shuffled_overlap(comparison, agreements, result.core),
        "random weights": overlap(result.core, other.core, result.sparsities),
    }
    return replace(result, null=shares)


def _shuffled_overlap(comparison: _Comparison, agreements: Agreements, core: Interval) -> float:
    """The median overlap of the core with that of curves shuffled among layers."""
    curves, random = comparison.diagnosed(sorted(agreements)), np.random.default_rng(0)

    def asking(shuffled: Diagnosis) -> Ask:
        def ask(s: float) -> Agreement | None:
            if not reachable(comparison.layers, [s], "rr", shuffled.rr):
                return None
            return comparison.compared([(s, "rr")], shuffled)[s]["rr"]

        return ask

    shuffles = [asking(replace(curves, rr=curves.rr.shuffled(random))) for _ in range(SHUFFLES)]
    return median_overlap(agreements, core, shuffles, track)


class _Comparison:
    """One network against what the rules make of it, on the same calibration and held-out images."""

    def __init__(self, model: nn.Module, calibration: CalibrationSet, held_out: Tensor, settings: PruneConfig) -> None:
        self.model, self.calibration, self.settings = model, calibration, settings
        self.layers = settings.layers(model)
        self.judge = Judge(model, held_out)

    def at(self, points: Sequence[float]) -> dict[float, dict[str, Agreement]]:
        """Per sparsity, the agreement of the network pruned by each rule that reaches it."""
        if not points:
            return {}
        curves = self.diagnosed(points)
        cells = [
            (s, rule)
            for s in points
            for rule in COMPARED
            if reachable(self.layers, [s], rule, curves.rr if rule == "rr" else None)
        ]
        agreements = self.compared(track(cells, "pruning and comparing", len(cells)), curves)
        return {s: agreements.get(s, {}) for s in points}

    def diagnosed(self, points: Sequence[float]) -> Diagnosis:
        """The curves of rr at these points; a sweep of its own extends the paper's grid only as far as it needs."""
        config = replace(self.settings, grid="paper") if isinstance(self.settings.grid, str) else self.settings
        wanted = measurement_for(Recipe("rr"), points, config)
        assert wanted is not None, "rr works on curves"
        return wanted.diagnose(self.model, self.calibration, self.layers)

    def compared(self, cells: Iterable[tuple[float, str]], curves: Diagnosis) -> dict[float, dict[str, Agreement]]:
        session = Session(self.model, self.layers, self.calibration, (), self.settings, curves)
        agreements: dict[float, dict[str, Agreement]] = {}
        for s, rule in cells:
            result = session.prune(Recipe(rule, options=self.settings.options), s)
            agreements.setdefault(s, {})[rule], _ = self.judge(result.model)
        return agreements


def _midpoints(agreements: Agreements) -> list[float]:
    """Between neighbours whose best agreement differs by more than 0.1, where there is room for another point."""
    points = sorted(s for s in agreements if agreements[s])
    best = [max(x.same for x in agreements[s].values()) for s in points]
    return [
        round((a + b) / 2, 4)
        for a, b, before, after in zip(points, points[1:], best, best[1:], strict=False)
        if before - after > 0.1 and b - a > 0.01
    ]
