"""Where recovery gives way: objective, transition scores, core, band, consistency; pure functions of arrays."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Scores:
    """Over the sweep; nan where a rule cannot reach the sparsity."""

    gap: FloatArray  # G = J(reference) - J(rr)
    stress: FloatArray  # T
    cts: FloatArray  # G * T
    smoothed: FloatArray


def transition_scores(reference: Sequence[float], measured: Sequence[float], at_low: float, at_high: float) -> Scores:
    """The paper's detector (sec:calibration_transition_detector).

    G(s) = J(reference_s) - J(rr_s); T(s) = clip((J(rr_s) - J(rr_low)) / (J(rr_high) - J(rr_low) + eps), 0, 1), and 0
    where J does not rise from low to high; CTS = G * T, smoothed by a centred mean of three (at ends and gaps, of what
    exists).
    """
    j_reference, j_rr = np.asarray(reference, dtype=float), np.asarray(measured, dtype=float)
    gap = j_reference - j_rr
    rise = at_high - at_low
    stress = np.clip((j_rr - at_low) / (rise + EPS), 0, 1) if rise > 0 else np.where(np.isnan(j_rr), np.nan, 0.0)
    cts = gap * stress
    return Scores(gap, stress, cts, _smoothed(cts))


def _smoothed(values: FloatArray) -> FloatArray:
    out = np.full(values.shape, np.nan)
    for i in range(len(values)):
        near = values[max(0, i - 1) : i + 2]
        if not np.isnan(values[i]):
            out[i] = np.mean(near[~np.isnan(near)])
    return out


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
    run = longest_run(known & (values >= threshold), values)
    return None if len(run) < points else (float(s[run[0]]), float(s[run[-1]]))


def find_band(sparsities: Sequence[float], scores: Sequence[float], *, low: float = 0.90) -> Interval | None:
    """The same rule with half the rise, at least three points long."""
    return find_core(sparsities, scores, low=low, share=BAND_SHARE, points=BAND_POINTS)


def longest_run(inside: Sequence[bool] | np.ndarray, scores: Sequence[float] | np.ndarray) -> list[int]:
    """The positions of the longest run of True; of equally long ones, the one with the highest score."""
    runs: list[list[int]] = []
    for i, flag in enumerate(inside):
        if flag:
            if i and inside[i - 1]:
                runs[-1].append(i)
            else:
                runs.append([i])
    return max(runs, key=lambda run: (len(run), max(scores[i] for i in run)), default=[])


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
    run = longest_run([count > len(cores) / 2 for count in counts], counts)
    majority = (sparsities[run[0]], sparsities[run[-1]]) if run else None
    stable = cores[0] if cores and all(core == cores[0] for core in cores) else None
    return Consensus(dict(votes), len(cores), stable, majority)


def rank_correlation(objectives: Sequence[float], accuracies: Sequence[float]) -> tuple[float, float]:
    """Spearman's rho and Kendall's tau between -J and the recovered accuracy, over rules; nan where one is constant."""
    from scipy import stats  # here, because importing it costs half a second

    if len(objectives) != len(accuracies) or len(objectives) < 2:
        raise InputError(f"{len(objectives)} objectives and {len(accuracies)} accuracies: need two or more of each")
    lower = -np.asarray(objectives, dtype=float)
    if np.ptp(lower) == 0 or np.ptp(accuracies) == 0:
        return float("nan"), float("nan")
    return float(stats.spearmanr(lower, accuracies).statistic), float(stats.kendalltau(lower, accuracies).statistic)


def consistency(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Local-to-joint consistency. Rows have sparsity, seed, objective (strict J) and accuracy, one per rule; per
    sparsity, the mean and sample deviation over seeds of Spearman's and Kendall's correlation over rules.
    """
    groups: dict[float, dict[float, list[Mapping[str, float]]]] = {}
    for row in rows:
        groups.setdefault(row["sparsity"], {}).setdefault(row["seed"], []).append(row)
    table = []
    for sparsity, by_seed in sorted(groups.items()):
        correlations = np.array(
            [rank_correlation([r["objective"] for r in g], [r["accuracy"] for r in g]) for g in by_seed.values()]
        )
        means = correlations.mean(0)
        spread = correlations.std(0, ddof=1) if len(correlations) > 1 else np.full(2, np.nan)
        table.append(
            {
                "sparsity": sparsity,
                "seeds": len(correlations),
                "spearman": float(means[0]),
                "spearman_sd": float(spread[0]),
                "kendall": float(means[1]),
                "kendall_sd": float(spread[1]),
            }
        )
    return table


def sparsities_per_layer(
    allocations: Sequence[Allocation], grid: Mapping[str, Sequence[float]]
) -> dict[str, list[float]]:
    """A grid and all sparsities that some allocations need, layer by layer: one pass then measures them all."""
    needed = {layer: set(points) for layer, points in grid.items()}
    for allocation in allocations:
        for layer, s in allocation.items():
            needed.setdefault(layer, set()).add(s)
    return {layer: sorted(points) for layer, points in needed.items()}
