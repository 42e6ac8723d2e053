"""From agreements to a verdict: where the transition begins and ends, and where inside it the rules differ."""

from __future__ import annotations

import math
from collections.abc import Mapping

from repairability.comparison import Agreement
from repairability.detect.result import Transition
from repairability.errors import InputError
from repairability.transition import longest_run

COMPARED = ("erk", "lamp", "rr")
"""The rules whose networks are compared."""

Agreements = Mapping[float, Mapping[str, Agreement]]
"""sparsity -> rule -> the agreement of its network with the dense one; a rule that cannot reach it is left out."""

TOLERANCE = 0.02
"""Agreement may fall by this much, beyond two standard errors, before a transition is said to begin."""


def same(agreement: Agreement) -> float:
    """The share of equal predictions, which only logits have."""
    if agreement.same is None:
        raise InputError(
            f"this detector compares predictions, and the outputs are compared by {agreement.distance!r}; "
            "PruneConfig(output=...) picks the logits, distance='kl' says that they are some"
        )
    return agreement.same


def doubt(agreement: Agreement) -> float:
    return agreement.standard_error or 0.0


def best_of(rules: Mapping[str, Agreement]) -> Agreement | None:
    """Of the rules that reach a point, the one that agrees most."""
    return max(rules.values(), key=same, default=None)


def spread_of(rules: Mapping[str, Agreement]) -> float:
    """By how much the best and the worst rule differ beyond two standard errors of their difference."""
    ordered = sorted(rules.values(), key=same)
    if len(ordered) < 2:
        return 0.0
    worst, best = ordered[0], ordered[-1]
    return same(best) - same(worst) - 2 * math.hypot(doubt(best), doubt(worst))


def fallen(now: Agreement, first: Agreement) -> bool:
    """Whether agreement is below its value at the lowest point by more than noise and the tolerance."""
    return same(now) < same(first) - 2 * math.hypot(doubt(now), doubt(first)) - TOLERANCE


def at_chance(now: Agreement) -> bool:
    return same(now) <= (now.chance or 0.0) + 2 * doubt(now)


def agreement_transition(agreements: Agreements) -> Transition:
    """What the agreements of the rules, per sparsity, say about the network."""
    points = tuple(sorted(agreements))
    by_rule = {rule: [agreements[s].get(rule) for s in points] for rule in COMPARED}
    by_rule = {rule: values for rule, values in by_rule.items() if any(values)}
    best = [best_of(agreements[s]) for s in points]
    spread = [spread_of(agreements[s]) for s in points]
    series = {rule: [None if x is None else x.same for x in values] for rule, values in by_rule.items()}
    series |= {f"KL {rule}": [None if x is None else x.kl for x in values] for rule, values in by_rule.items()}
    series["chance"] = [None if x is None else x.chance for x in best]
    series["beyond noise"] = [max(0.0, x) for x in spread]

    reached = [(i, x) for i, x in enumerate(best) if x is not None]
    start = next((i for i, x in reached if fallen(x, reached[0][1])), None)
    end = next((i for i, x in reached if at_chance(x)), None)
    core = broad = None
    if start is not None:
        last = len(points) - 1 if end is None else end
        broad = (points[start], points[last])
        core = longest_run(points, [start <= i <= last and x > 0 for i, x in enumerate(spread)], spread)
    unreachable = {
        rule: [s for s, x in zip(points, values, strict=True) if x is None] for rule, values in by_rule.items()
    }
    return Transition(
        method="agreement",
        sparsities=points,
        series=series,
        core=core,
        broad=broad,
        unreachable={rule: missed for rule, missed in unreachable.items() if missed},
        collapse=None if end is None else points[end],
    )
