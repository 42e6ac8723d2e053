"""A detector that looks at the joint network: pruned, repaired and compared with the dense one on held-out images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from repairability._torch import channels_last_, copy_of, reset_weights_
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, COUNT, CalibrationSet, Images
from repairability.detect.cts import SHUFFLES, reachable
from repairability.detect.result import Transition
from repairability.diagnostics import Diagnosis, diagnose
from repairability.errors import InputError
from repairability.evaluation import Agreement, agreement_of_logits, logits_of
from repairability.layers import prunable_layers
from repairability.pipeline import PruneConfig, PruneResult, grid_for, prune_many
from repairability.progress import track
from repairability.transition import inside, longest_run, overlap

Watch = Callable[[PruneResult], None]

SWEEP = (0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.99)
RULES = ("erk", "lamp", "rr")
HELD_OUT = 1000
TOLERANCE = 0.02
"""Agreement may fall by this much, beyond two standard errors, before a transition is said to begin."""


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
    result = _agreement_transition(found)
    if not null or result.core is None:
        return result
    untrained = copy_of(model)
    reset_weights_(untrained, seed=0)
    random = _Comparison(untrained, calibration, everything.images[-held:], settings)
    other = _agreement_transition(random.at(result.sparsities))
    shares = {
        "shuffled": _shuffled_share(watched, found, inside(result.core, result.sparsities)),
        "random weights": overlap(result.core, other.core, result.sparsities),
    }
    return replace(result, null=shares)


def _shuffled_share(
    watched: _Comparison, found: Mapping[float, Mapping[str, Agreement]], core: Sequence[float]
) -> float:
    """On curves shuffled among layers: the median share of the core's points where the rules still differ.

    Curves reach this detector through the rule rr alone, so rr alone is pruned anew, and only in the core; where the
    other rules already differ, nothing need be. The share bounds the overlap of the two cores from above.
    """
    settled = {s for s in core if _spread({k: v for k, v in found[s].items() if k != "rr"}) > 0}
    open_points = [s for s in core if s not in settled]
    if not open_points:
        return 1.0
    curves, random = watched.diagnosed(open_points), np.random.default_rng(0)
    shuffles = [replace(curves, rr=curves.rr.shuffled(random)) for _ in range(SHUFFLES)]
    shares = []
    for each in track(shuffles, "the same on shuffled curves", SHUFFLES):
        cells = [(s, "rr") for s in reachable(watched.layers, open_points, "rr", each.rr)]
        theirs = watched.compared(cells, each)
        differ = [s for s in theirs if _spread({**found[s], **theirs[s]}) > 0]
        shares.append((len(settled) + len(differ)) / len(core))
    return float(np.median(shares))


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
        grid: Any = grid_for(points) if isinstance(self.settings.grid, str) else self.settings.grid
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


def _agreement_transition(found: Mapping[float, Mapping[str, Agreement]]) -> Transition:
    points = tuple(sorted(found))
    rules = [rule for rule in RULES if any(rule in found[s] for s in points)]
    best = [max(found[s].values(), key=lambda x: x.same, default=None) for s in points]
    series: dict[str, list[float | None]] = {
        rule: [found[s][rule].same if rule in found[s] else None for s in points] for rule in rules
    }
    series |= {f"KL {rule}": [found[s][rule].kl if rule in found[s] else None for s in points] for rule in rules}
    series["chance"] = [None if x is None else x.chance for x in best]
    spread = [_spread(found[s]) for s in points]
    series["beyond noise"] = [max(0.0, x) for x in spread]

    first = next((x for x in best if x is not None), None)
    start = end = None
    for i, x in enumerate(best):
        if x is None or first is None:
            continue
        error = math.hypot(x.standard_error, first.standard_error)
        if start is None and x.same < first.same - 2 * error - TOLERANCE:
            start = i
        if end is None and x.same <= x.chance + 2 * x.standard_error:
            end = i
    core = broad = None
    if start is not None:
        last = len(points) - 1 if end is None else end
        broad = (points[start], points[last])
        run = longest_run([start <= i <= last and spread[i] > 0 for i in range(len(points))], spread)
        core = (points[run[0]], points[run[-1]]) if run else None
    unreachable = {rule: [s for s in points if rule not in found[s]] for rule in rules}
    return Transition(
        method="agreement",
        sparsities=points,
        series=series,
        core=core,
        broad=broad,
        unreachable={k: v for k, v in unreachable.items() if v},
        collapse=None if end is None else points[end],
    )


def _spread(found: Mapping[str, Agreement]) -> float:
    """By how much the best and the worst rule differ beyond two standard errors of their difference."""
    ordered = sorted(found.values(), key=lambda x: x.same)
    if len(ordered) < 2:
        return 0.0
    worst, best = ordered[0], ordered[-1]
    return best.same - worst.same - 2 * math.hypot(best.standard_error, worst.standard_error)
