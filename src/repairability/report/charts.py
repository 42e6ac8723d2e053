"""ReportData -> charts. Each is described once: the page shows it alive, `render` draws it without a browser.

A chart's `description` says in words what it shows; where a switch of the page changes it, `usermeta` has that switch's
name and the words for each of its values. The title is the paper's: the page takes it out and makes it a heading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repairability.curves import TITLES_OF_MEASURES
from repairability.report import drawing
from repairability.report.data import ReportData
from repairability.report.drawing import GREY, ROOM, Row, altair, chart, layer_labels, level, lines
from repairability.report.estimates import Estimate, estimates, gaps, how_measured, leaders
from repairability.report.methods import STYLES, styles
from repairability.report.recipes import recipes_chart
from repairability.report.tables import TITLES, at_target, interval, layers_of, short_percent, targets

if TYPE_CHECKING:
    from altair import LayerChart

SERIES = ("circle", "diamond", "triangle-up", "square", "cross", "star")


def _hundred(fraction: float | None) -> float:
    return round(100 * (fraction or 0), 10)


def _point(name: str, repair: str, sparsity: float, estimate: Estimate) -> Row:
    point = {"name": name, "repair": repair, "sparsity": _hundred(sparsity), "value": _hundred(estimate.mean)}
    return {**point, "error": _hundred(estimate.error), "seeds": estimate.seeds}


def accuracy(data: ReportData, band: tuple[float, float] | None = None) -> LayerChart | None:
    """Top-1 against target sparsity, one line per rule; several repairs differ by dash. `band` is shaded."""
    rows = [
        _point(method.rule, method.repair, s, estimate)
        for method, points in estimates(data).items()
        for s, estimate in points.items()
    ]
    if not rows:
        return None
    best = ", ".join(
        f"{' = '.join(leader.labels)} at {short_percent(leader.sparsity)} ({100 * leader.estimate.mean:.2f} %)"
        for leader in leaders(data)
    )
    words, note = f"{TITLES['top1'].removesuffix(', %')}. Highest mean: {best}.", ""
    layers = [] if band is None else drawing.shaded({"rr above erk": band})
    if data.dense is not None:
        dense = 100 * data.dense["top1"]
        words += f" Dense: {dense:.2f} %."
        if dense < 1.3 * max(row["value"] for row in rows):
            layers += level(dense, f"dense {dense:.2f}", dash=[2, 3])
        else:  # so far up that its line would flatten the rest
            note = f"dense: {dense:.2f} %, above this chart"
    style = styles(row["name"] for row in rows)
    layers += lines(rows, style, "target sparsity, %", "top-1 accuracy, %", ".2f", zero=True)
    return chart(layers, f"Top-1 accuracy, {data.model} on {data.data}", words, note=note)


def gap(data: ReportData) -> LayerChart | None:
    """rr minus erk accuracy at each sparsity, paired by seed."""
    points = gaps(data)
    if not points:
        return None
    name = "rr - erk"
    rows = [_point(name, repair, s, estimate) for (repair, s), estimate in points.items()]
    heights = [row["value"] for row in rows]
    how = how_measured(list(points.values())).replace("cells marked * are", "some points are")
    words = (
        f"rr minus erk lies between {min(heights):+.2f} and {max(heights):+.2f} points, above 0 at "
        f"{sum(height > 0 for height in heights)} of {len(heights)}; paired by seed, {how}."
    )
    layers = level(0, colour=STYLES["erk"][0])
    layers += lines(rows, {name: STYLES["rr"]}, "target sparsity, %", "rr minus erk, points", "+.2f", legend=False)
    title = f"rr minus erk, {data.model} on {data.data}"
    return chart(layers, title, words, note=f"paired by seed; {how}", height=210)


def transition(data: ReportData) -> LayerChart | None:
    """The series over sparsity; the core and the broad band shaded."""
    scores = data.transition
    if scores is None:
        return None
    rows = [
        {"name": name, "sparsity": _hundred(s), "value": value}
        for name, values in scores["series"].items()
        for s, value in zip(scores["sparsities"], values, strict=True)
    ]
    bands = {name: scores[key] for key, name in (("broad", "broad band"), ("core", "core")) if scores[key] is not None}
    where = ", ".join(f"{name} {interval(bounds)}" for name, bounds in reversed(bands.items()))
    words = f"Method {scores['method']}, series {', '.join(scores['series'])}: {where or 'no transition found'}."
    coloured = styles(scores["series"]).items()
    style = {name: (colour, SERIES[i % len(SERIES)]) for i, (name, (colour, _)) in enumerate(coloured)}
    drawn = lines(rows, style, "sparsity, %", str(scores["method"]), ".4f")
    return chart([*drawing.shaded(bands), *drawn], f"{scores['method']}, {data.model} on {data.data}", words)


def damage(data: ReportData) -> LayerChart | None:
    """One layer's raw and residual; the parameter `layer` says which, at first the first one."""
    return _one_layer(data, ("raw", "residual"), "distance", "Damage, before and after repair", zero=True)


def share(data: ReportData) -> LayerChart | None:
    """One layer's rr, the other layers behind it."""
    chosen = " Grey: the other layers; dotted: 1, where repair mends nothing."
    return _one_layer(data, ("rr",), "rr", "rr: share of the damage left", chosen)


def felt(data: ReportData) -> LayerChart | None:
    """One layer's damage at the network's output, the other layers behind it, where it was measured."""
    if data.diagnosis is None or data.diagnosis.output is None:
        return None
    axis, more = "relative error of the network's output", " Grey: the other layers."
    return _one_layer(data, ("output",), axis, "output: damage at the network's output", more, zero=True)


def _one_layer(
    data: ReportData, measures: Sequence[str], axis: str, title: str, more: str = "", **options: Any
) -> LayerChart | None:
    if data.diagnosis is None:
        return None
    measured: list[Row] = data.diagnosis.rows()
    rows = [
        {"layer": row["layer"], "sparsity": _hundred(row["sparsity"]), "name": measure, "value": row[measure]}
        for measure in measures
        for row in measured
    ]
    words = {}
    for layer in data.diagnosis.rr:
        spans = []
        for measure in measures:
            of_layer = [row for row in rows if (row["layer"], row["name"]) == (layer, measure)]
            ends = [f"{row['value']:.3g} at {row['sparsity']:g} %" for row in (of_layer[0], of_layer[-1])]
            spans.append(f"{measure} goes from {' to '.join(ends)}")
        words[layer] = f"{layer}: {'; '.join(spans)}.{more}"
    layers, alone, first = [], len(measures) == 1, next(iter(words))
    if alone:
        others = drawing.rows_of(rows).mark_line(color=GREY, strokeWidth=1, opacity=0.35)
        layers = [others.encode(x="sparsity:Q", y="value:Q", detail="layer:N")]
        layers += level(1, dash=[2, 3]) if measures == ("rr",) else []
    layers += lines(rows, styles(measures), "sparsity, %", axis, ".4f", legend=not alone, **options)
    drawn = chart(layers, title, words[first], height=230, usermeta={"switch": "layer", "words": words})
    return drawn.add_params(altair().param(name="layer", value=first))


def heatmap(data: ReportData, measure: str = "rr") -> LayerChart | None:
    """A measure by layer and sparsity; of rr the palest is 1, where repair mends nothing."""
    if data.diagnosis is None:
        return None
    alt, labels = altair(), layer_labels(data.diagnosis.rr, data.projections)
    measured: list[Row] = data.diagnosis.rows()
    rows = [
        {"layer": row["layer"], "label": labels[row["layer"]], "sparsity": _hundred(row["sparsity"])}
        | {"value": row[measure]}
        for row in measured
    ]
    ends = [choose(rows, key=lambda row: row["value"]) for choose in (min, max)]
    least, most = (f"{row['value']:.3g} ({row['layer']} at {row['sparsity']:g} %)" for row in ends)
    width = len({row["sparsity"] for row in rows})
    words = f"Over {len(labels)} layers and {width} sparsities, {measure} is least {least} and most {most}."
    if measure == "rr":
        harm = sum(row["value"] > 1 for row in rows)
        words += f" Below 1 the repair mends; above 1, at {harm} of {len(rows)} points, it does harm."
        reach = max(0.05, *(abs(row["value"] - 1) for row in rows))
        scale = alt.Scale(domain=[1 - reach, 1, 1 + reach], range=["#2a7fc9", "rgba(128,128,128,0.08)", "#d9482b"])
    else:
        alike = ("output",) if measure == "output" else ("raw", "residual")  # one scale for what is one distance
        top = max(row[name] for row in measured for name in alike)
        scale = alt.Scale(domain=[0, top], scheme="cividis")
    across = {"title": "sparsity, %", "scale": alt.Scale(paddingInner=0.03)}
    value = alt.Tooltip("value:Q", title=measure, format=".4f")
    tiles = drawing.rows_of(rows).mark_rect()
    tiles = tiles.encode(
        x=alt.X("sparsity:O", axis=alt.Axis(labelAngle=0, domain=False, **ROOM), **across),
        y=drawing.layer_axis(labels, paddingInner=0.08),
        color=alt.Color("value:Q", scale=scale, legend=alt.Legend(gradientLength=alt.ExprRef("0.8 * width"))),
        tooltip=["layer:N", alt.Tooltip("sparsity:O", title="sparsity, %"), value],
    )
    title = f"{TITLES_OF_MEASURES[measure]}{'' if measure == 'raw' else f' {data.diagnosis.repair}'}, {data.model}"
    return chart([tiles], title, words, height=22 * len(labels))


def layerwise(data: ReportData, target: float, spread: Mapping[str, float] | None = None) -> LayerChart | None:
    """Each allocation minus ERK, layer by layer, at one target; `spread` gives error bars by layer."""
    plans = at_target(data, target)
    if "erk" not in plans:
        return None
    erk = plans["erk"]
    rows: list[Row] = [
        {"layer": layer, "name": name, "value": plan[layer] - erk[layer], "error": (spread or {}).get(layer, 0.0)}
        for name, plan in plans.items()
        for layer in plan
        if plan is not erk and layer in erk
    ]
    if not rows:
        return None
    far = max(rows, key=lambda row: (abs(row["value"]), row["name"], row["layer"]))
    words = (
        f"The largest difference from ERK is that of {far['name']} at {far['layer']}: "
        f"{plans[far['name']][far['layer']]:.3f} against {erk[far['layer']]:.3f}."
    )
    zero = level(0, colour=STYLES["erk"][0], axis="x")
    return _by_layer(data, target, rows, zero, "sparsity minus ERK's", "+.4f", words)


def levels(data: ReportData, target: float) -> LayerChart | None:
    """The sparsity of each layer by each allocation of one target."""
    plans = at_target(data, target)
    rows = [{"layer": layer, "name": name, "value": plan[layer]} for name, plan in plans.items() for layer in plan]
    words = f"At {short_percent(target)}: the sparsity of {len(layers_of(plans))} layers by {', '.join(plans)}."
    return _by_layer(data, target, rows, [], "sparsity", ".4f", words) if rows else None


def _by_layer(
    data: ReportData, target: float, rows: Sequence[Row], behind: Sequence[Any], axis: str, number: str, words: str
) -> LayerChart:
    """A dot for each layer and rule; projections stand on a tinted row."""
    labels = layer_labels(layers_of(at_target(data, target)), data.projections)
    tinted = drawing.rows_of({"label": label} for layer, label in labels.items() if layer in data.projections)
    tinted = tinted.mark_rect(color=GREY, opacity=0.16).encode(y=drawing.layer_axis(labels))
    title = f"{axis.capitalize().replace('erk', 'ERK')} at {short_percent(target)}, {data.model}"
    return chart([tinted, *behind, *drawing.dots(rows, labels, axis, number)], title, words, height=24 * len(labels))


def heatmaps(data: ReportData) -> dict[str, LayerChart | None]:
    """By measure, of each that was measured."""
    known = () if data.diagnosis is None else data.diagnosis.measures
    return {measure: heatmap(data, measure) for measure in TITLES_OF_MEASURES if measure in known}


def named_charts(data: ReportData) -> dict[str, LayerChart]:
    """Every chart that the data can fill, by the name of its file."""
    drawn = {
        "recipes": recipes_chart(data),
        "accuracy": accuracy(data),
        "heatmap": heatmap(data),
        "gap": gap(data),
        "transition": transition(data),
    }
    drawn |= {f"layerwise_{100 * target:g}": layerwise(data, target) for target in targets(data)}
    return {name: chart for name, chart in drawn.items() if chart is not None}
