"""ReportData -> what the page's plots draw: plain numbers, and for each plot one sentence that says what it shows."""

from __future__ import annotations

import math
from typing import Any

from repairability.diagnostics import Diagnosis
from repairability.report.data import ReportData
from repairability.report.estimates import estimates, gaps, how_measured, sparsities
from repairability.report.methods import colours, marks
from repairability.report.rows import named_csv
from repairability.report.tables import TITLES, at_target, interval, layers_of, short_percent, targets

MEASURES = {
    "rr": "rr: share of the damage left after repair",
    "raw": "raw: damage of pruning",
    "residual": "residual: damage left after repair",
}


def payload(data: ReportData) -> dict[str, Any]:
    """Everything the scripts of the page read; a part is None where the data has none."""
    names = [str(row["rule"]) for row in data.results]
    names += [name for target in targets(data) for name in at_target(data, target)]
    names += list(data.transition["series"]) if data.transition else []
    colour, mark = colours(names), marks(names)
    return {
        "styles": {name: {"colour": colour[name], "mark": mark[name]} for name in colour},
        "projections": list(data.projections),
        "dense": None if data.dense is None else data.dense["top1"],
        "heat": None if data.diagnosis is None else heat(data.diagnosis),
        "allocations": [allocation(data, target) for target in targets(data)],
        "accuracy": [
            {
                "label": method.label,
                "rule": method.rule,
                "repair": method.repair,
                "x": list(points),
                "y": [each.mean for each in points.values()],
                "error": [each.error for each in points.values()],
                "seeds": [each.seeds for each in points.values()],
            }
            for method, points in estimates(data).items()
        ],
        "gap": [
            {"repair": each.repair, "x": each.sparsity, "y": each.estimate.mean, "error": each.estimate.error}
            for each in gaps(data)
        ],
        "transition": None if data.transition is None else dict(data.transition),
        "csv": named_csv(data),
    }


def heat(diagnosis: Diagnosis) -> dict[str, Any]:
    """The three measures as matrices over layers and the union of their grids; null where a layer was not measured."""
    points = sorted({float(s) for grid in diagnosis.rr.grid.values() for s in grid})
    curves = {"raw": diagnosis.raw, "residual": diagnosis.residual, "rr": diagnosis.rr}
    found: dict[str, Any] = {"layers": list(diagnosis.rr), "sparsities": points, "titles": MEASURES, "words": {}}
    for measure in MEASURES:
        known = {
            layer: dict(zip(diagnosis.rr.grid[layer].tolist(), curves[measure][layer].tolist(), strict=True))
            for layer in diagnosis.rr
        }
        found[measure] = [[known[layer].get(s) for s in points] for layer in known]
        every = [(value, layer, s) for layer, values in known.items() for s, value in values.items()]
        (low, low_layer, low_s), (high, high_layer, high_s) = min(every), max(every)
        words = (
            f"Over {len(known)} layers and {len(points)} sparsities, {measure} is least {low:.3g} ({low_layer} at "
            f"{short_percent(low_s)}) and most {high:.3g} ({high_layer} at {short_percent(high_s)})."
        )
        if measure == "rr":
            harm = sum(value > 1 for value, _, _ in every)
            words += f" Below 1 the repair mends; above 1, at {harm} of {len(every)} points, it does harm."
        found["words"][measure] = words
    return found


def allocation(data: ReportData, target: float) -> dict[str, Any]:
    """The allocations of one target: sparsities, and differences from ERK where ERK is there."""
    named = at_target(data, target)
    erk = named.get("erk")
    layers = list(layers_of(named))
    series = [
        {
            "name": name,
            "sparsity": [each.get(layer) for layer in layers],
            "difference": None
            if erk is None or each is erk
            else [each[x] - erk[x] if x in each and x in erk else None for x in layers],
        }
        for name, each in named.items()
    ]
    far = [
        (abs(each[x] - erk[x]), name, x)
        for name, each in named.items()
        for x in layers
        if erk is not None and each is not erk and x in each and x in erk
    ]
    words = f"At {short_percent(target)}: the sparsity of {len(layers)} layers by {', '.join(named)}."
    difference = ""
    if far and erk is not None:
        _, name, layer = max(far)
        difference = (
            f"The largest difference from ERK is that of {name} at {layer}: "
            f"{named[name][layer]:.3f} against {erk[layer]:.3f}."
        )
    return {
        "target": target,
        "label": short_percent(target),
        "file": f"allocations_{100 * target:g}",
        "layers": layers,
        "series": series,
        "words": {"sparsity": words, "difference": difference},
    }


def best(data: ReportData) -> list[dict[str, Any]]:
    """For each sparsity the method with the highest mean top-1 (all of them, where they tie), and the next one."""
    found = estimates(data)
    ranks = []
    for s in sparsities(data):
        rank = sorted(
            ((points[s], method.label) for method, points in found.items() if s in points), key=lambda x: -x[0].mean
        )
        top = rank[0][0]
        equal = [label for each, label in rank if math.isclose(each.mean, top.mean, abs_tol=1e-9)]
        rest = rank[len(equal) :]
        ranks.append({"sparsity": s, "first": (top, " = ".join(equal)), "next": rest[0] if rest else None})
    return ranks


def accuracy_words(data: ReportData) -> str:
    """Who is best where."""
    each = [
        f"{label} at {short_percent(rank['sparsity'])} ({100 * found.mean:.2f} %)"
        for rank in best(data)
        for found, label in [rank["first"]]
    ]
    return f"{TITLES['top1'].removesuffix(', %')}. Highest mean: {', '.join(each)}."


def gap_words(data: ReportData) -> str:
    """How rr and ERK compare."""
    found = gaps(data)
    if not found:
        return ""
    low, high = (f"{100 * pick(each.estimate.mean for each in found):+.2f}" for pick in (min, max))
    above = sum(each.estimate.mean > 0 for each in found)
    kind = how_measured([each.estimate for each in found]).replace("cells marked * are", "some points are")
    where = f"between {low} and {high} points, above 0 at {above} of {len(found)}"
    return f"rr minus erk lies {where}; paired by seed, {kind}."


def transition_words(data: ReportData) -> str:
    """Where core and band lie."""
    found = data.transition
    if found is None:
        return ""
    parts = [
        f"{name} {interval(found[key])}"
        for key, name in (("core", "core"), ("broad", "broad band"))
        if found[key] is not None
    ]
    series = ", ".join(found["series"])
    return f"Method {found['method']}, series {series}: {', '.join(parts) or 'no transition found'}."
