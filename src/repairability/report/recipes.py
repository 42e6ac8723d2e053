"""Recipes side by side, and what a pruned network weighs and takes: tables and a chart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repairability.report import drawing
from repairability.report.estimates import Estimate, how_measured, over_seeds, span
from repairability.report.methods import styles
from repairability.report.tables import Rows, cell, short_percent
from repairability.tables import Table

if TYPE_CHECKING:
    from altair import LayerChart

    from repairability.report.data import ReportData

TINY = 1_000_000
"""Parameters below which times say little of other networks."""


def recipe_estimates(data: ReportData) -> dict[str, dict[float, Estimate]]:
    """For each recipe, as they came, the estimate at each of its sparsities."""
    cells = over_seeds(data.recipes, "top1", lambda row: (row["recipe"], round(float(row["sparsity"]), 6)))
    lines: dict[str, dict[float, Estimate]] = {}
    for (recipe, sparsity), estimate in cells.items():
        lines.setdefault(recipe, {})[sparsity] = estimate
    return {recipe: dict(sorted(line.items())) for recipe, line in lines.items()}


def _seconds(data: ReportData, recipe: str) -> float:
    return statistics.median(float(row["seconds"]) for row in data.recipes if row["recipe"] == recipe)


def recipe_rows(data: ReportData) -> Rows:
    """One row per recipe and sparsity."""
    return [
        {"recipe": recipe, "sparsity": s, "top1": point.mean, "error": point.error, "error_kind": point.kind}
        | {"seeds": point.seeds, "n": point.n, "seconds": _seconds(data, recipe)}
        for recipe, line in recipe_estimates(data).items()
        for s, point in line.items()
    ]


def recipes_table(data: ReportData) -> Table:
    """Recipes by sparsities: the mean over seeds and its error, and the seconds of one pruning."""
    lines = recipe_estimates(data)
    columns = sorted({s for line in lines.values() for s in line})
    cells = [point for line in lines.values() for point in line.values()]
    rows = [
        (recipe, *(cell(line.get(s)) for s in columns), f"{_seconds(data, recipe):.2f}")
        for recipe, line in lines.items()
    ]
    caption = ""
    if cells:
        caption = f"{data.model} on {data.data}, n = {span(x.n for x in cells)} test images; {how_measured(cells)}. "
        caption += "Seconds: the median of one pruning, its diagnosis counted in."
    if data.dense is not None:
        caption += f" Dense: {100 * data.dense['top1']:.2f}"
    title = "Top-1 accuracy by recipe, %"
    return Table(("recipe", *map(short_percent, columns), "seconds"), rows, title, caption)


def _range(values: Sequence[float] | None, digits: int = 3) -> str:
    """The median of several medians, and between which they lie."""
    if not values:
        return ""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}\N{EN DASH}{max(values):.{digits}f})"


def shipped_rows(data: ReportData) -> Rows:
    """One row per network that was written and timed."""
    return [{name: _plain(value) for name, value in row.items()} for row in data.shipped]


def _plain(value: Any) -> Any:
    return " ".join(f"{x:.6g}" for x in value) if isinstance(value, (list, tuple)) else value


def shipped_table(data: ReportData) -> Table:
    """Bytes and milliseconds at each sparsity."""
    timed = any(row["ms"] for row in data.shipped)
    columns = ["sparsity", "dense file", "sparse file", "times smaller"]
    columns += ["torch, ms", "accelerated, ms", "times as fast"] if timed else []
    rows = []
    for row in data.shipped:
        dense, sparse = row["dense_bytes"], row["sparse_bytes"]
        times = (_range(row["plain_ms"]), _range(row["ms"]), _faster(row)) if timed else ()
        rows.append((short_percent(row["sparsity"]), f"{dense:,}", f"{sparse:,}", f"{dense / sparse:.1f}", *times))
    recipe = ", ".join(dict.fromkeys(str(row["recipe"]) for row in data.shipped))
    size = span(row["parameters"] for row in data.shipped) if data.shipped else "no"
    caption = f"{data.model} of {size} parameters, recipe {recipe}; bytes of files."
    if timed:
        threads, rounds = span(row["threads"] for row in data.shipped), span(len(row["ms"]) for row in data.shipped)
        caption += (
            f" Milliseconds for one image, CPU threads: {threads}; torch with BatchNorm folded, and rp.accelerate: the "
            f"median of {rounds} measurements on this machine (their range)."
        )
        if all(row["parameters"] < TINY for row in data.shipped):
            caption += " A tiny network, which the cache holds; docs/shipping.md has the times of real ones."
    return Table(columns, rows, "Bytes and milliseconds", caption)


def _faster(row: Mapping[str, Any]) -> str:
    return f"{statistics.median(row['plain_ms']) / statistics.median(row['ms']):.1f}" if row["ms"] else ""


def recipes_chart(data: ReportData) -> LayerChart | None:
    """Top-1 against sparsity, one line per recipe."""
    lines = recipe_estimates(data)
    rows = [
        {"name": recipe, "sparsity": round(100 * s, 10), "value": 100 * point.mean, "error": 100 * (point.error or 0.0)}
        | {"seeds": point.seeds}
        for recipe, line in lines.items()
        for s, point in line.items()
    ]
    if not rows:
        return None
    layers = []
    if data.dense is not None:
        dense = 100 * data.dense["top1"]
        layers = drawing.level(dense, f"dense {dense:.2f}", dash=[2, 3])
    layers += drawing.lines(rows, styles(lines), "sparsity, %", "top-1 accuracy, %", ".2f", zero=True)
    return drawing.chart(layers, f"Recipes, {data.model} on {data.data}", recipe_words(data))


def furthest_apart(data: ReportData) -> tuple[float, dict[str, Estimate]] | None:
    """The sparsity at which the best recipe leads by most, and what each reaches there, the best first."""
    lines = recipe_estimates(data)
    common = [s for s in next(iter(lines.values()), {}) if all(s in line for line in lines.values())]
    if not common:
        return None

    def ranked(s: float) -> dict[str, Estimate]:
        return {recipe: lines[recipe][s] for recipe in sorted(lines, key=lambda x: -lines[x][s].mean)}

    def lead(s: float) -> float:
        best, *others = (estimate.mean for estimate in ranked(s).values())
        return best - max(others, default=best)

    most = max(common, key=lambda s: (lead(s), s))
    return most, ranked(most)


def told(reached: Mapping[str, Estimate]) -> str:
    return ", ".join(f"{recipe} {100 * estimate.mean:.2f} %" for recipe, estimate in reached.items())


def recipe_words(data: ReportData) -> str:
    """Where the recipes are furthest apart, in a sentence."""
    apart = furthest_apart(data)
    return "Recipes at different sparsities." if apart is None else f"At {short_percent(apart[0])}: {told(apart[1])}."
