"""Means over seeds and their errors; which estimator, always said."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repairability.report.methods import ordered

if TYPE_CHECKING:
    from repairability.report.data import ReportData

FRACTIONS = ("top1", "agreement")
"""Measures that count images, so that one seed has a binomial error."""


@dataclass(frozen=True)
class Estimate:
    """A mean over `seeds` runs. `error` is their sample standard deviation (n - 1) from two runs on; for one run of a
    fraction the binomial standard error sqrt(p (1 - p) / n); for one run of anything else None."""

    mean: float
    error: float | None
    seeds: int
    n: int

    @property
    def kind(self) -> str:
        if self.error is None:
            return "none"
        return "std" if self.seeds > 1 else "binomial"

    @property
    def half_width(self) -> float | None:
        """Of the 95 % interval of the mean: by Student's t over the seeds; of one run, 1.96 binomial errors."""
        from scipy.special import stdtrit  # here, because importing scipy takes a while

        if self.error is None or self.seeds == 1:
            return None if self.error is None else 1.96 * self.error
        return float(stdtrit(self.seeds - 1, 0.975)) * self.error / math.sqrt(self.seeds)

    @property
    def standard_error(self) -> float | None:
        """Of the mean."""
        return None if self.error is None else self.error / math.sqrt(self.seeds)


@dataclass(frozen=True)
class Method:
    """One line of a figure: a rule and, where a report has several repairs, the repair."""

    rule: str
    repair: str
    label: str


@dataclass(frozen=True)
class Gap:
    """Accuracy of one rule minus another's on the same seeds, at one sparsity."""

    repair: str
    sparsity: float
    estimate: Estimate


@dataclass(frozen=True)
class Leader:
    """The highest mean at one sparsity, all methods that have it, and who comes next."""

    sparsity: float
    estimate: Estimate
    labels: tuple[str, ...]
    runner_up: tuple[Estimate, str] | None


def sparsities(data: ReportData) -> list[float]:
    """The target sparsities of the results, rising."""
    return sorted({round(float(row["sparsity"]), 6) for row in data.results})


def methods(data: ReportData) -> list[Method]:
    """Rules in the house's order, within each the repairs as they came."""
    repairs = list(dict.fromkeys(str(row["repair"]) for row in data.results))
    present = {(row["rule"], row["repair"]) for row in data.results}
    return [
        Method(rule, repair, rule if len(repairs) == 1 else f"{rule}, {repair}")
        for rule in ordered(str(row["rule"]) for row in data.results)
        for repair in repairs
        if (rule, repair) in present
    ]


def estimates(data: ReportData, measure: str = "top1") -> dict[Method, dict[float, Estimate]]:
    """For each method the estimate at each of its sparsities; runs without `measure` do not count."""
    found: dict[Method, dict[float, Estimate]] = {}
    for method in methods(data):
        runs: dict[float, list[Mapping[str, Any]]] = {}
        for row in data.results:
            if (row["rule"], row["repair"]) == (method.rule, method.repair) and row.get(measure) is not None:
                runs.setdefault(round(float(row["sparsity"]), 6), []).append(row)
        if runs:
            found[method] = {s: estimate([row[measure] for row in runs[s]], runs[s], measure) for s in sorted(runs)}
    return found


def estimate(values: Sequence[float], runs: Sequence[Mapping[str, Any]], measure: str) -> Estimate:
    """See `Estimate`."""
    n = min(int(run["n"]) for run in runs)
    mean = statistics.fmean(values)
    error: float | None = None
    if len(values) > 1:
        error = statistics.stdev(values)
    elif measure in FRACTIONS:
        error = math.sqrt(max(0.0, mean * (1 - mean)) / n)
    return Estimate(mean, error, len(values), n)


def gaps(data: ReportData, rule: str = "rr", against: str = "erk") -> list[Gap]:
    """`rule` minus `against`, paired by seed: the mean difference and the sample standard deviation of the differences;
    with one common seed both runs' binomial errors, added in quadrature as if they were independent."""
    top1 = {
        (row["rule"], row["repair"], round(float(row["sparsity"]), 6), row["seed"]): (float(row["top1"]), int(row["n"]))
        for row in data.results
    }
    found = []
    for repair in dict.fromkeys(str(row["repair"]) for row in data.results):
        for s in sparsities(data):
            ours = {key[3]: value for key, value in top1.items() if key[:3] == (rule, repair, s)}
            theirs = {key[3]: value for key, value in top1.items() if key[:3] == (against, repair, s)}
            pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
            if not pairs:
                continue
            differences = [p - q for (p, _), (q, _) in pairs]
            error = (
                statistics.stdev(differences)
                if len(pairs) > 1
                else math.sqrt(sum(p * (1 - p) / n for p, n in pairs[0]))
            )
            n = min(count for pair in pairs for _, count in pair)
            found.append(Gap(repair, s, Estimate(statistics.fmean(differences), error, len(pairs), n)))
    return found


def leaders(data: ReportData) -> list[Leader]:
    """For each sparsity the method with the highest mean top-1 (all of them, where they tie), and the next one."""
    lines = estimates(data)
    ranks = []
    for s in sparsities(data):
        ranking = sorted(((line[s], m.label) for m, line in lines.items() if s in line), key=lambda x: -x[0].mean)
        top = ranking[0][0]
        equal = tuple(label for other, label in ranking if math.isclose(other.mean, top.mean, abs_tol=1e-9))
        ranks.append(Leader(s, top, equal, ranking[len(equal)] if len(equal) < len(ranking) else None))
    return ranks


def how_measured(found: Sequence[Estimate], measure: str = "top1") -> str:
    """What the numbers after ± are, in words."""
    kinds = {each.kind for each in found}
    seeds = sorted({each.seeds for each in found if each.seeds > 1})
    over = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}" if seeds else ""
    std = f"mean over {over} seeds ± sample standard deviation"
    if kinds == {"std"}:
        return std
    if kinds == {"binomial"}:
        return "one seed ± binomial standard error"
    if kinds == {"none"}:
        return f"one seed, no error known for {measure}"
    if "std" not in kinds:
        return "one seed, ± binomial standard error where one is known"
    single = "± binomial standard error" if "binomial" in kinds else "without an error"
    return f"{std}; cells marked * are of one seed, {single}"
