"""A detector that looks at the joint network: pruned, repaired and compared with the dense one on held-out images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from repairability._torch import channels_last_, copy_of, reset_weights_
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, COUNT, CalibrationSet, Images
from repairability.detect.cts import SHUFFLES, reachable
from repairability.detect.result import Transition
from repairability.detect.shuffled import Ask, Found, median_overlap
from repairability.detect.verdict import RULES, agreement_transition
from repairability.diagnostics import Diagnosis, diagnose
from repairability.errors import InputError
from repairability.evaluation import Agreement, agreement_of_logits, logits_of
from repairability.network.layers import prunable_layers
from repairability.progress import track
from repairability.pruning import PruneConfig, PruneResult, grid_for, prune_many
from repairability.transition import Interval, overlap

Watch = Callable[[PruneResult], None]

SWEEP = (0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.99)
HELD_OUT = 1000


def find_by_agreement(
    model: nn.Module,
    images: Images,
    sweep: tuple[float, ...],
    settings: PruneConfig,
    *,
    refine: bool,
    null: bool,
    watch: Watch | None,
) -> Transition:
    most = settings.count + BN_BATCHES * BN_BATCH_SIZE + HELD_OUT
    everything = CalibrationSet.read(images, count=settings.count, batch_size=settings.batch_size, most=most)
    spare = len(everything) - settings.count
    held = min(HELD_OUT, spare // 3)
    if held < 30:
        raise InputError(
            f"method 'agreement' holds images out: {len(everything)} leave {held} beside the {settings.count} of the "
            f"statistics and BatchNorm's; give {COUNT + 100} or more"
        )
    calibration = CalibrationSet(everything.images[:-held], settings.count, settings.batch_size)
    watched = _Comparison(model, calibration, everything.images[-held:], settings, watch)
    found = watched.at(sweep)
    if refine:
        for _ in range(2):
            found |= watched.at(_midpoints(found))
    result = agreement_transition(found)
    if not null or result.core is None:
        return result
    untrained = copy_of(model)
    reset_weights_(untrained, seed=0)
    random = _Comparison(untrained, calibration, everything.images[-held:], settings)
    other = agreement_transition(random.at(result.sparsities))
    shares = {
        "shuffled": _shuffled_overlap(watched, found, result.core),
        "random weights": overlap(result.core, other.core, result.sparsities),
    }
    return replace(result, null=shares)


def _shuffled_overlap(watched: _Comparison, found: Found, core: Interval) -> float:
    """The median overlap of the core with that of curves shuffled among layers."""
    curves, random = watched.diagnosed(sorted(found)), np.random.default_rng(0)

    def asking(shuffled: Diagnosis) -> Ask:
        def ask(s: float) -> Agreement | None:
            if not reachable(watched.layers, [s], "rr", shuffled.rr):
                return None
            return watched.compared([(s, "rr")], shuffled)[s]["rr"]

        return ask

    shuffles = [asking(replace(curves, rr=curves.rr.shuffled(random))) for _ in range(SHUFFLES)]
    return median_overlap(found, core, shuffles, track)


class _Comparison:
    """One network against what the rules make of it, on the same calibration and held-out images."""

    def __init__(
        self,
        model: nn.Module,
        calibration: CalibrationSet,
        held_out: Tensor,
        settings: PruneConfig,
        watch: Watch | None = None,
    ) -> None:
        self.model, self.calibration, self.settings, self.watch = model, calibration, settings, watch
        self.layers = prunable_layers(model, types=settings.types, skip=settings.skip, only=settings.only)
        self.batches = held_out.split(250)  # type: ignore[no-untyped-call]
        self.dense = logits_of(model, self.batches)

    def at(self, points: Sequence[float]) -> dict[float, dict[str, Agreement]]:
        """Per sparsity, the agreement of the network pruned by each rule that reaches it."""
        if not points:
            return {}
        curves = self.diagnosed(points)
        cells = [
            (s, rule)
            for s in points
            for rule in RULES
            if reachable(self.layers, [s], rule, curves.rr if rule == "rr" else None)
        ]
        found = self.compared(track(cells, "pruning and comparing", len(cells)), curves, self.watch)
        return {s: found.get(s, {}) for s in points}

    def diagnosed(self, points: Sequence[float]) -> Diagnosis:
        grid: Any = grid_for(points, "paper") if isinstance(self.settings.grid, str) else self.settings.grid
        repair, observe = self.settings.conditioned_on or "cr+bn", self.settings.observe
        return diagnose(self.model, self.calibration, grid=grid, repair=repair, observe=observe, layers=self.layers)

    def compared(
        self, cells: Iterable[tuple[float, str]], curves: Diagnosis, watch: Watch | None = None
    ) -> dict[float, dict[str, Agreement]]:
        found: dict[float, dict[str, Agreement]] = {}
        for s, rule in cells:
            (result,) = prune_many(
                self.model, self.calibration, sparsities=[s], rules=[rule], curves=curves, config=self.settings
            )
            if watch is not None:
                watch(result)
            with channels_last_(result.model):
                pairs = zip(self.dense, logits_of(result.model, self.batches), strict=True)
                found.setdefault(s, {})[rule] = agreement_of_logits(pairs)
        return found


def _midpoints(found: Mapping[float, Mapping[str, Agreement]]) -> list[float]:
    """Between neighbours whose best agreement differs by more than 0.1, where there is room for another point."""
    points = sorted(s for s in found if found[s])
    best = [max(x.same for x in found[s].values()) for s in points]
    return [
        round((a + b) / 2, 4)
        for a, b, before, after in zip(points, points[1:], best, best[1:], strict=False)
        if before - after > 0.1 and b - a > 0.01
    ]
