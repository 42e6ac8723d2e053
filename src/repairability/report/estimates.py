"""Means over seeds and their errors; which estimator, always said."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from repairability.report.methods import ordered

if TYPE_CHECKING:
    from repairability.report.data import ReportData

FRACTIONS = ("top1", "agreement")
"""Measures that count images, so that one seed has a binomial error."""

Row = Mapping[str, Any]
"""One run: at least its number of images "n" and the measure asked for."""

Key = TypeVar("Key", bound=Hashable)


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
class Leader:
    """The highest mean at one sparsity, all methods that have it, and who comes next."""

    sparsity: float
    estimate: Estimate
    labels: tuple[str, ...]
    runner_up: tuple[Estimate, str] | None


def sparsities(data: ReportData) -> list[float]:
    """The target sparsities of the results, rising."""
    return sorted({_sparsity(row) for row in data.results})


def _sparsity(row: Row) -> float:
    return round(float(row["sparsity"]), 6)


def repairs(data: ReportData) -> list[str]:
    """The repairs of the results, as they came."""
    return list(dict.fromkeys(str(row["repair"]) for row in data.results))


def estimates(data: ReportData, measure: str = "top1") -> dict[Method, dict[float, Estimate]]:
    """For each method the estimate at each of its sparsities; runs without `measure` do not count. Rules in the house's
    order, within each the repairs as they came."""
    cells = over_seeds(data.results, measure, lambda row: (row["rule"], row["repair"], _sparsity(row)))
    known, points = repairs(data), sparsities(data)
    return {
        Method(rule, repair, rule if len(known) == 1 else f"{rule}, {repair}"): line
        for rule in ordered(row["rule"] for row in data.results)
        for repair in known
        if (line := {s: cells[rule, repair, s] for s in points if (rule, repair, s) in cells})
    }


def over_seeds(rows: Iterable[Row], measure: str, key: Callable[[Row], Key]) -> dict[Key, Estimate]:
    """The estimate over the rows of each key; rows without `measure` do not count."""
    cells: dict[Key, list[Row]] = {}
    for row in rows:
        if row.get(measure) is not None:
            cells.setdefault(key(row), []).append(row)
    return {
        name: _estimate([float(run[measure]) for run in runs], runs, measure if measure in FRACTIONS else None)
        for name, runs in cells.items()
    }


def _estimate(values: Sequence[float], runs: Sequence[Row], fraction: str | None) -> Estimate:
    """Over `values`, of these runs; one alone has the binomial errors of their `fraction`, added in quadrature."""
    error: float | None = None
    if len(values) > 1:
        error = statistics.stdev(values)
    elif fraction is not None:
        error = math.sqrt(sum(max(0.0, run[fraction] * (1 - run[fraction])) / run["n"] for run in runs))
    return Estimate(statistics.fmean(values), error, len(values), min(int(run["n"]) for run in runs))


def gaps(data: ReportData, rule: str = "rr", against: str = "erk") -> dict[tuple[str, float], Estimate]:
    """(repair, sparsity) -> accuracy of `rule` minus `against`, paired by seed: the mean difference and the sample
    standard deviation of the differences; with one common seed both runs' binomial errors, added in quadrature as if
    they were independent."""
    runs = {(row["rule"], row["repair"], _sparsity(row), row["seed"]): row for row in data.results}
    pairs: dict[tuple[str, float], list[tuple[Row, Row]]] = {}
    for (name, repair, s, seed), row in runs.items():
        if name == rule and (against, repair, s, seed) in runs:
            pairs.setdefault((repair, s), []).append((row, runs[against, repair, s, seed]))
    cells = [(repair, s) for repair in repairs(data) for s in sparsities(data) if (repair, s) in pairs]
    return {cell: _difference(pairs[cell]) for cell in cells}


def _difference(pairs: Sequence[tuple[Row, Row]]) -> Estimate:
    differences = [float(ours["top1"]) - float(theirs["top1"]) for ours, theirs in pairs]
    return _estimate(differences, [run for pair in pairs for run in pair], "top1")


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


def span(numbers: Iterable[int]) -> str:
    """'3', or '2 to 3' where they differ."""
    rising = sorted(numbers)
    return f"{rising[0]:,}" if rising[0] == rising[-1] else f"{rising[0]:,} to {rising[-1]:,}"


def how_measured(cells: Sequence[Estimate], measure: str = "top1") -> str:
    """What the numbers after ± are, in words."""
    kinds = {cell.kind for cell in cells}
    if kinds == {"binomial"}:
        return "one seed ± binomial standard error"
    if kinds == {"none"}:
        return f"one seed, no error known for {measure}"
    if "std" not in kinds:
        return "one seed, ± binomial standard error where one is known"
    std = f"mean over {span(cell.seeds for cell in cells if cell.seeds > 1)} seeds ± sample standard deviation"
    if kinds == {"std"}:
        return std
    single = "± binomial standard error" if "binomial" in kinds else "without an error"
    return f"{std}; cells marked * are of one seed, {single}"
