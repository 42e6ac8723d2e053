"""RR minus each other rule, and which of the gaps are beyond noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from repairability.report.estimates import Estimate
from repairability.report.methods import ordered
from repairability.tables import Table
from reproduction.sections.groups import Group, gap_cells

BEYOND_SEEDS, BEYOND_IMAGES = "†", "‡"
TITLE = "RR minus each other rule, points of top-1 accuracy, paired by seed"


def gap_table(found: Sequence[Group]) -> Table:
    """One line per place and sparsity, one column per rule."""
    rules = ordered(str(row["rule"]) for group in found for row in group.report.results)
    ours = gap_cells(found, {f"rr - {rule}": ("rr", rule) for rule in rules if rule != "rr"})
    columns = list(dict.fromkeys(column for row in ours.values() for column in row))
    every = [each for row in ours.values() for each in row.values()]
    lines = [(*key, *(_cell(row.get(column)) for column in columns)) for key, row in ours.items()]
    return Table(("network", "sparsity", *columns), lines, TITLE, _caption(every))


def _cell(gap: Estimate | None) -> str:
    if gap is None or gap.error is None or gap.standard_error is None:
        return ""
    mark = ""
    if abs(gap.mean) > 2 * gap.standard_error:
        mark = f" {BEYOND_IMAGES if abs(gap.mean) > 2 * _images_error(gap.n) else BEYOND_SEEDS}"
    mean = round(100 * gap.mean, 2) + 0.0  # no negative zero
    return f"{mean:+.2f} ± {100 * gap.error:.2f}{'*' if gap.seeds == 1 else ''}{mark}"


def _images_error(n: int) -> float:
    """The most that the standard error of a difference of two proportions on n images can be."""
    return math.sqrt(0.5 / n)


def _caption(every: Sequence[Estimate]) -> str:
    if not every:
        return "No paired runs of ours."
    seeds = sorted({each.seeds for each in every})
    parts = []
    if seeds[-1] > 1:
        over = f"{seeds[-1]}" if len({*seeds} - {1}) == 1 else f"{min({*seeds} - {1})} to {seeds[-1]}"
        parts.append(
            f"± is the sample standard deviation of the differences over {over} seeds. Seeds are draws of calibration "
            "images; the test images are the same in all of them, and their own noise is not in it."
        )
    if seeds[0] == 1:
        parts.append(
            "*: one seed, ± the binomial standard error of a difference of two proportions p and q on n images, "
            "sqrt((p (1 - p) + q (1 - q)) / n), at most sqrt(2 p (1 - p) / n) for the p nearer to one half; a bound, "
            "since both rules saw the same images."
        )
    sizes = sorted({each.n for each in every})
    n = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    most = 200 * _images_error(sizes[0])
    parts.append(
        f"{BEYOND_SEEDS}: the mean is more than two standard errors from 0{_asked(seeds)}; {BEYOND_IMAGES}: and more "
        f"than two standard errors of the test images at worst, sqrt(0.5 / n) each (n = {n}: {most:.2f} points)."
    )
    return " ".join(parts)


def _asked(seeds: Sequence[int]) -> str:
    """How much more than two standard errors a 95 % interval would ask for, which with few seeds is a lot."""
    few = [count for count in seeds if count > 1]
    if not few:
        return ""
    width = Estimate(0.0, few[0] ** 0.5, few[0], 1).half_width  # in standard errors
    return f" (a 95 % interval by Student's t over {few[0]} seeds would ask for {width:.1f})"
