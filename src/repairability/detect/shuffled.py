"""The null of curves dealt to the wrong layers, for the detector that looks at the joint network.

Curves reach that detector through the rule rr alone. So the other rules' networks serve every shuffle, and rr is
pruned anew only at the points on which the answer hangs: on digits 14 prunings in 58 s, where asking at every point
takes 112 in 181 s.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from repairability.comparison import Agreement
from repairability.detect.verdict import Agreements, agreement_transition, at_chance, best_of, fallen, same, spread_of
from repairability.progress import track
from repairability.transition import Interval, inside, overlap, runs

Ask = Callable[[float], Agreement | None]
"""A sparsity -> the agreement of rr's network on these shuffled curves; None where rr cannot reach it."""

_MOST_OPEN = 12
"""With so many open points their combinations are not gone through; the next point is asked first."""


def median_overlap(agreements: Agreements, core: Interval, shuffles: Sequence[Ask]) -> float:
    """The median, over the shuffles, of the share of the core that is named again; the last shuffles are left out when
    they cannot move it.
    """
    shares: list[float] = []
    for ask in track(shuffles, "the same on shuffled curves", len(shuffles)):
        shares.append(named_again(agreements, core, ask))
        left = len(shuffles) - len(shares)
        least, most = (float(np.median(shares + [rest] * left)) for rest in (0.0, 1.0))
        if least == most:
            break
    return least


def named_again(agreements: Agreements, core: Interval, ask: Ask) -> float:
    """The overlap of the core with the one found when rr's agreements are those that `ask` gives.

    Asks from the core outwards, the points where the other rules do not differ first, until every possible rest gives
    the same overlap; it is then exactly that of asking everywhere.
    """
    known = {s: {rule: x for rule, x in agreements[s].items() if rule != "rr"} for s in sorted(agreements)}
    points, within = tuple(known), inside(core, tuple(known))
    waiting = sorted(points, key=lambda s: (s not in within, spread_of(known[s]) > 0, abs(s - sum(core) / 2)))
    while waiting:
        shares = _possible_shares(known, waiting, core)
        if len(shares) == 1:
            return shares.pop()
        s = waiting.pop(0)
        if (answer := ask(s)) is not None:
            known[s]["rr"] = answer
    return overlap(core, agreement_transition(known).core, points)


def _possible_shares(known: Agreements, waiting: Sequence[float], core: Interval) -> set[float]:
    """Every overlap that some answers at the waiting points could lead to; more than one where it is not gone into."""
    points, choices = tuple(known), _memberships(known, waiting)
    if sum(len(choice) == 2 for choice in choices) > _MOST_OPEN:
        return {0.0, 1.0}
    shares: set[float] = set()
    for members in itertools.product(*choices):
        longest = max(map(len, runs(members)), default=0)
        ties = [(points[run[0]], points[run[-1]]) for run in runs(members) if len(run) == longest]
        shares |= {overlap(core, tie, points) for tie in ties} or {0.0}
        if len(shares) > 1:
            break
    return shares


def _memberships(known: Agreements, waiting: Sequence[float]) -> list[set[bool]]:
    """Per point, whether it is inside the transition with rules that differ: one answer if certain, else both.

    rr can only raise the best agreement of a point, up to 1, and only widen the spread of its rules.
    """
    lowest = next((s for s in known if known[s]), None)
    first = None if lowest is None else best_of(known[lowest])
    if first is None or same(first) < 0.5:
        return [{False, True}] * len(known)
    highest = replace(first, same=1.0) if lowest in waiting else first
    choices: list[set[bool]] = []
    may_have_begun = has_begun = may_have_ended = False
    for s, rules in known.items():
        best, differ, open_ = best_of(rules), spread_of(rules) > 0, s in waiting
        may_have_begun |= best is None or fallen(best, highest)
        has_begun |= best is not None and not open_ and fallen(best, first) and fallen(best, highest)
        choices.append({may_have_begun and (differ or open_), has_begun and differ and not may_have_ended})
        # another rule at the top has another chance level: below one half nothing is certain before rr has answered
        may_have_ended |= best is None or at_chance(best) or (open_ and same(best) < 0.5)
    return choices
