"""Where recovery gives way: objective, transition scores, core, band; pure functions of arrays."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repairability.algebra.sums import EPS
from repairability.allocation import Allocation
from repairability.curves import Curves, FloatArray
from repairability.errors import InputError

CORE_SHARE, BAND_SHARE, BAND_POINTS = 0.7, 0.5, 3
"""How much of the way from the background to the peak a score must be for the core, for the broad band; the band's
least length (the paper leaves the band open; ours).
"""

Interval = tuple[float, float]


def objective(curves: Curves, allocation: Mapping[str, float], *, interpolate: bool = False) -> float:
    """J(A) = mean over layers of rr_l(s_l) (sec:calibration_transition_detector).

    Strict: every s_l must have been measured. `interpolate`: linear between measured points, 1 at sparsity 0.
    """
    value = curves.between if interpolate else curves.at
    return float(np.mean([value(layer, s) if s > 0 else 1.0 for layer, s in allocation.items()]))


def transition_scores(
    reference: Sequence[float], measured: Sequence[float], at_low: float, at_high: float
) -> dict[str, FloatArray]:
    """The paper's detector (sec:calibration_transition_detector): G, T, CTS and "smoothed" over the sweep, nan where a
    rule cannot reach the sparsity.

    G(s) = J(reference_s) - J(rr_s); T(s) = clip((J(rr_s) - J(rr_low)) / (J(rr_high) - J(rr_low) + eps), 0, 1), and 0
    where J does not rise from low to high; CTS = G * T, smoothed by a centred mean of three (at ends and gaps, of what
    exists).
    """
    j_reference, j_rr = np.asarray(reference, dtype=float), np.asarray(measured, dtype=float)
    gap = j_reference - j_rr
    rise = at_high - at_low
    stress = np.clip((j_rr - at_low) / (rise + EPS), 0, 1) if rise > 0 else np.where(np.isnan(j_rr), np.nan, 0.0)
    cts = gap * stress
    padded = np.pad(cts, 1, constant_values=np.nan)
    near = np.ma.masked_invalid([padded[:-2], cts, padded[2:]]).mean(axis=0).filled(np.nan)
    return {"G": gap, "T": stress, "CTS": cts, "smoothed": np.where(np.isnan(cts), np.nan, near)}


def find_core(
    sparsities: Sequence[float],
    scores: Sequence[float],
    *,
    low: float = 0.90,
    share: float = CORE_SHARE,
    points: int = 1,
) -> Interval | None:
    """The longest run of consecutive sweep points with score >= B + share * (max - B), B the largest score at or below
    `low`. Of equally long runs the one with the higher score. None where nothing rises above B, or the run is shorter
    than `points`.
    """
    s, values = np.asarray(sparsities, dtype=float), np.asarray(scores, dtype=float)
    if s.shape != values.shape:
        raise InputError(f"{len(s)} sparsities need as many scores, not {len(values)}")
    known = ~np.isnan(values)
    below = values[known & (s <= low + 1e-9)]
    background = float(below.max()) if below.size else 0.0
    if not known.any() or values[known].max() <= background:
        return None
    threshold = background + share * (values[known].max() - background)
    return longest_run(s.tolist(), (known & (values >= threshold)).tolist(), values.tolist(), points)


def find_band(sparsities: Sequence[float], scores: Sequence[float], *, low: float = 0.90) -> Interval | None:
    """The same rule with half the rise, at least three points long."""
    return find_core(sparsities, scores, low=low, share=BAND_SHARE, points=BAND_POINTS)


def runs(inside: Sequence[bool]) -> list[list[int]]:
    """The positions of each run of True."""
    groups = itertools.groupby(range(len(inside)), key=inside.__getitem__)
    return [list(positions) for is_in, positions in groups if is_in]


def longest_run(
    sparsities: Sequence[float], inside: Sequence[bool], scores: Sequence[float], points: int = 1
) -> Interval | None:
    """From the first to the last sparsity of the longest run inside, `points` long or longer; of equally long ones the
    one with the highest score.
    """
    run = max(runs(inside), key=lambda run: (len(run), max(scores[i] for i in run)), default=[])
    return None if len(run) < points else (sparsities[run[0]], sparsities[run[-1]])


def inside(interval: Interval | None, sparsities: Sequence[float]) -> list[float]:
    """The sweep points within an interval."""
    return [] if interval is None else [s for s in sparsities if interval[0] - 1e-9 <= s <= interval[1] + 1e-9]


def overlap(real: Interval | None, other: Interval | None, sparsities: Sequence[float]) -> float:
    """The share of the real core's points that lie in the other one."""
    points = inside(real, sparsities)
    return len(set(points) & set(inside(other, sparsities))) / len(points) if points else 0.0


@dataclass(frozen=True)
class Consensus:
    """Several draws of calibration images: how often each point is in the core, the core that all agree on (or None),
    and the longest run of points that more than half of the draws have.
    """

    votes: dict[float, int]
    draws: int
    stable: Interval | None
    majority: Interval | None

    def to_dict(self) -> dict[str, object]:
        votes = {f"{sparsity:g}": votes for sparsity, votes in self.votes.items()}
        return {"stable": self.stable, "majority": self.majority, "votes": votes}

    def __str__(self) -> str:
        stable, majority = (
            "none" if core is None else f"{100 * core[0]:g} to {100 * core[1]:g} %"
            for core in (self.stable, self.majority)
        )
        counted = ", ".join(f"{100 * sparsity:g} %: {votes}" for sparsity, votes in self.votes.items() if votes)
        return (
            f"over {self.draws} draws: stable core {stable}, majority core {majority}\n"
            f"draws with a point in the core: {counted or 'none'}"
        )


def consensus(cores: Sequence[Interval | None], sparsities: Sequence[float]) -> Consensus:
    votes = Counter(dict.fromkeys(sparsities, 0))
    for core in cores:
        votes.update(inside(core, sparsities))
    counts = [votes[s] for s in sparsities]
    majority = longest_run(sparsities, [count > len(cores) / 2 for count in counts], counts)
    stable = cores[0] if cores and all(core == cores[0] for core in cores) else None
    return Consensus(dict(votes), len(cores), stable, majority)


def sparsities_per_layer(
    allocations: Sequence[Allocation], grid: Mapping[str, Sequence[float]]
) -> dict[str, list[float]]:
    """A grid and all sparsities that some allocations need, layer by layer: one pass then measures them all."""
    return {layer: sorted({*points, *(plan[layer] for plan in allocations)}) for layer, points in grid.items()}
