"""The null of curves dealt to the wrong layers, for the detector that looks at the joint network.

Curves reach that detector through the rule rr alone. So the other rules' networks serve every shuffle, and rr is
pruned anew only at the points on which the answer hangs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from repairability.detect.verdict import Agreements, agreement_transition, at_chance, best_of, fallen, spread_of
from repairability.evaluation import Agreement
from repairability.transition import Interval, inside, overlap

Ask = Callable[[float], Agreement | None]
"""A sparsity -> the agreement of rr's network on these shuffled curves; None where rr cannot reach it."""

_MOST_OPEN = 12
"""With so many open points their combinations are not gone through; the next point is asked first."""


def median_overlap(
    agreements: Agreements, core: Interval, shuffles: Sequence[Ask], track: Callable[..., Iterable[Ask]]
) -> float:
    """The median, over the shuffles, of the share of the core that is named again; the last shuffles are left out when
    they cannot move it.
    """
    shares: list[float] = []
    for ask in track(shuffles, "the same on shuffled curves", len(shuffles)):
        shares.append(named_again(agreements, core, ask))
        left = len(shuffles) - len(shares)
        if np.median(shares + [0.0] * left) == np.median(shares + [1.0] * left):
            break
    return float(np.median(shares + [0.0] * (len(shuffles) - len(shares))))


def named_again(agreements: Agreements, core: Interval, ask: Ask) -> float:
    """The overlap of the core with the one found when rr's agreements are those that `ask` gives.

    Asks from the core outwards, the points where the other rules do not differ first, until every possible rest gives
    the same overlap; it is then exactly that of asking everywhere.
    """
    known = {s: {rule: x for rule, x in agreements[s].items() if rule != "rr"} for s in sorted(agreements)}
    points = tuple(known)
    middle = (core[0] + core[1]) / 2
    within = set(inside(core, points))
    waiting = sorted(points, key=lambda s: (s not in within, spread_of(known[s]) > 0, abs(s - middle)))
    while waiting:
        shares = _possible_shares(known, set(waiting), core)
        if len(shares) == 1:
            return shares.pop()
        s = waiting.pop(0)
        answer = ask(s)
        if answer is not None:
            known[s]["rr"] = answer
    return overlap(core, agreement_transition(known).core, points)


def _possible_shares(known: Mapping[float, Mapping[str, Agreement]], waiting: set[float], core: Interval) -> set[float]:
    """Every overlap that some answers at the waiting points could lead to; more than one where it is not gone into."""
    points = tuple(known)
    choices = _memberships(known, waiting)
    if sum(len(choice) == 2 for choice in choices) > _MOST_OPEN:
        return {0.0, 1.0}
    shares: set[float] = set()
    for members in itertools.product(*choices):
        runs = [[i for i, _ in run] for is_in, run in itertools.groupby(enumerate(members), lambda x: x[1]) if is_in]
        longest = max(map(len, runs), default=0)
        ties = [run for run in runs if len(run) == longest]
        shares |= {overlap(core, (points[run[0]], points[run[-1]]), points) for run in ties} or {0.0}
        if len(shares) > 1:
            break
    return shares


def _memberships(known: Mapping[float, Mapping[str, Agreement]], waiting: set[float]) -> list[tuple[bool, ...]]:
    """Per point, whether it is inside the transition with rules that differ: one answer if certain, else both.

    rr can only raise the best agreement of a point, up to 1, and only widen the spread of its rules.
    """
    lowest = next((s for s in known if known[s]), None)
    first = None if lowest is None else best_of(known[lowest])
    if first is None or first.same < 0.5:
        return [(False, True)] * len(known)
    highest = replace(first, same=1.0) if lowest in waiting else first
    choices: list[tuple[bool, ...]] = []
    may_have_begun = has_begun = may_have_ended = False
    for s, rules in known.items():
        best = best_of(rules)
        may_have_begun |= best is None or fallen(best, highest)
        has_begun |= best is not None and s not in waiting and fallen(best, first) and fallen(best, highest)
        differ: tuple[bool, ...] = (True,) if spread_of(rules) > 0 else (False,)
        if s in waiting and differ == (False,):
            differ = (False, True)
        if not may_have_begun:
            differ = (False,)
        elif differ == (True,) and (not has_begun or may_have_ended):
            differ = (False, True)
        choices.append(differ)
        # another rule at the top has another chance level: below one half nothing is certain before rr has answered
        may_have_ended |= best is None or at_chance(best) or (s in waiting and best.same < 0.5)
    return choices
