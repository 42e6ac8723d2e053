"""From agreements to a verdict: where the transition begins and ends, and where inside it the rules differ."""

from __future__ import annotations

import math
from collections.abc import Mapping

from repairability.detect.result import Transition
from repairability.evaluation import Agreement
from repairability.transition import longest_run

COMPARED = ("erk", "lamp", "rr")
"""The rules whose networks are compared."""

Agreements = Mapping[float, Mapping[str, Agreement]]
"""sparsity -> rule -> the agreement of its network with the dense one; a rule that cannot reach it is left out."""

TOLERANCE = 0.02
"""Agreement may fall by this much, beyond two standard errors, before a transition is said to begin."""


def best_of(rules: Mapping[str, Agreement]) -> Agreement | None:
    """Of the rules that reach a point, the one that agrees most."""
    return max(rules.values(), key=lambda x: x.same, default=None)


def fallen(now: Agreement, first: Agreement) -> bool:
    """Whether agreement is below its value at the lowest point by more than noise and the tolerance."""
    return now.same < first.same - 2 * math.hypot(now.standard_error, first.standard_error) - TOLERANCE


def at_chance(now: Agreement) -> bool:
    return now.same <= now.chance + 2 * now.standard_error


def agreement_transition(agreements: Agreements) -> Transition:
    """What the agreements of the rules, per sparsity, say about the network."""
    points = tuple(sorted(agreements))
    rules = [rule for rule in COMPARED if any(rule in agreements[s] for s in points)]
    best = [best_of(agreements[s]) for s in points]
    series: dict[str, list[float | None]] = {
        rule: [agreements[s][rule].same if rule in agreements[s] else None for s in points] for rule in rules
    }
    series |= {
        f"KL {rule}": [agreements[s][rule].kl if rule in agreements[s] else None for s in points] for rule in rules
    }
    series["chance"] = [None if x is None else x.chance for x in best]
    spread = [spread_of(agreements[s]) for s in points]
    series["beyond noise"] = [max(0.0, x) for x in spread]

    first = next((x for x in best if x is not None), None)
    start = end = None
    for i, x in enumerate(best):
        if x is None or first is None:
            continue
        if start is None and fallen(x, first):
            start = i
        if end is None and at_chance(x):
            end = i
    core = broad = None
    if start is not None:
        last = len(points) - 1 if end is None else end
        broad = (points[start], points[last])
        run = longest_run([start <= i <= last and spread[i] > 0 for i in range(len(points))], spread)
        core = (points[run[0]], points[run[-1]]) if run else None
    unreachable = {rule: [s for s in points if rule not in agreements[s]] for rule in rules}
    return Transition(
        method="agreement",
        sparsities=points,
        series=series,
        core=core,
        broad=broad,
        unreachable={k: v for k, v in unreachable.items() if v},
        collapse=None if end is None else points[end],
    )


def spread_of(rules: Mapping[str, Agreement]) -> float:
    """By how much the best and the worst rule differ beyond two standard errors of their difference."""
    ordered = sorted(rules.values(), key=lambda x: x.same)
    if len(ordered) < 2:
        return 0.0
    worst, best = ordered[0], ordered[-1]
    return best.same - worst.same - 2 * math.hypot(best.standard_error, worst.standard_error)
