"""ReportData -> matplotlib figures; the one import of matplotlib. No pyplot, so no global state and no display."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from repairability.errors import MissingExtraError
from repairability.report.data import ReportData
from repairability.report.estimates import estimates, gaps, how_measured, sparsities
from repairability.report.methods import colours, marks
from repairability.report.tables import at_target, layers_of, short_percent, targets

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = {
    "square": "s",
    "x": "X",
    "triangle-up": "^",
    "triangle-down": "v",
    "circle": "o",
    "diamond": "D",
    "cross": "P",
    "star": "*",
    "hexagon": "h",
    "triangle-left": "<",
    "triangle-right": ">",
}
DASHES = ("-", "--", ":", "-.")
CORE, BROAD, SOFT = "#d55e00", "#e6b98f", "#555b64"


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError("matplotlib", "report") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#e3e6ea", linewidth=0.7)
    axes.set_axisbelow(True)
    return figure, axes


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(textwrap.fill(text, int(11 * figure.get_figwidth())), fontsize="medium")


def _ticks(axes: Axes, points: list[float]) -> None:
    """A tick at each sparsity, a label where there is room for it."""
    apart = 0.06 * (points[-1] - points[0])
    kept: list[float] = []
    for s in points:
        if not kept or s - kept[-1] >= apart:
            kept.append(s)
    axes.set_xticks([100 * s for s in kept], [f"{100 * s:g}" for s in kept])


def _legend(figure: Figure, columns: int) -> None:
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize="small")


def accuracy(data: ReportData, band: tuple[float, float] | None = None) -> Figure | None:
    """Top-1 against target sparsity, one line per rule; several repairs differ by dash. `band` is shaded."""
    found = estimates(data)
    if not found:
        return None
    figure, axes = _axes(6.4, 4.4)
    if band is not None:
        low, high = (100 * bound for bound in band)
        axes.axvspan(low, high, facecolor=(BROAD, 0.25), edgecolor=(BROAD, 0.75), linewidth=1.5, label="rr above erk")
    colour, mark = colours(m.rule for m in found), marks(m.rule for m in found)
    repairs = list(dict.fromkeys(method.repair for method in found))
    for method, points in found.items():
        axes.errorbar(
            [100 * s for s in points],
            [100 * each.mean for each in points.values()],
            yerr=[100 * (each.error or 0) for each in points.values()],
            label=method.label,
            color=colour[method.rule],
            marker=MARKERS[mark[method.rule]],
            linestyle=DASHES[repairs.index(method.repair) % len(DASHES)],
            linewidth=1.5,
            markersize=5,
            capsize=2.5,
        )
    if data.dense is not None:
        dense = 100 * data.dense["top1"]
        if dense < 130 * max(each.mean for points in found.values() for each in points.values()):
            axes.axhline(dense, color=SOFT, linestyle=":", linewidth=1.2, label="dense")
        else:  # so far above that its line would flatten the rest
            note = f"dense {dense:.2f} ↑"
            axes.text(1, 1, note, transform=axes.transAxes, ha="right", va="top", color=SOFT, fontsize="small")
    axes.set_ylim(bottom=0)
    axes.set(xlabel="target sparsity, %", ylabel="top-1 accuracy, %")
    _title(figure, f"{data.model} on {data.data}")
    _ticks(axes, sparsities(data))
    _legend(figure, 4 if max(len(method.label) for method in found) < 18 else 2)  # long labels take half the width
    return figure


def heatmap(data: ReportData) -> Figure | None:
    """rr by layer and sparsity; white is 1, where repair mends nothing."""
    if data.diagnosis is None:
        return None
    rr = data.diagnosis.rr
    points = sorted({float(s) for grid in rr.grid.values() for s in grid})
    values = np.full((len(rr), len(points)), np.nan)
    for i, layer in enumerate(rr):
        values[i, [points.index(s) for s in rr.grid[layer].tolist()]] = rr[layer]
    figure, axes = _axes(2.6 + 0.55 * len(points) + 0.05 * max(map(len, rr)), 1.4 + 0.24 * len(rr))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    reach = max(0.05, float(np.nanmax(np.abs(values - 1))))
    image = axes.imshow(values, cmap="RdBu_r", vmin=1 - reach, vmax=1 + reach, aspect="auto")
    axes.set_xticks(range(len(points)), [f"{100 * s:g}" for s in points])
    axes.set_yticks(range(len(rr)), _marked(data, list(rr)), fontsize="small")
    axes.tick_params(length=0)
    axes.set(xlabel="sparsity, %")
    _title(figure, f"{data.model}: damage left by repair {data.diagnosis.repair}")
    figure.colorbar(image, ax=axes, label="rr = residual / raw")
    return figure


def layerwise(data: ReportData, target: float, spread: Mapping[str, float] | None = None) -> Figure | None:
    """Each allocation minus ERK, layer by layer, at one target; `spread` gives error bars by layer."""
    named = at_target(data, target)
    others = {name: each for name, each in named.items() if name != "erk"}
    if "erk" not in named or not others:
        return None
    layers = list(layers_of(named))
    figure, axes = _axes(6.8, 1.6 + 0.26 * len(layers))
    colour, mark = colours(named), marks(named)
    for i, layer in enumerate(layers):
        if layer in data.projections:
            axes.axhspan(i - 0.5, i + 0.5, color="#f1f3f6", zorder=0)
    axes.axvline(0, color=colour["erk"], linewidth=1.5, label="erk")
    for name, each in others.items():
        both = [i for i, layer in enumerate(layers) if layer in each and layer in named["erk"]]
        axes.errorbar(
            [each[layers[i]] - named["erk"][layers[i]] for i in both],
            both,
            xerr=None if spread is None else [spread.get(layers[i], 0.0) for i in both],
            label=name,
            color=colour[name],
            marker=MARKERS[mark[name]],
            linestyle="none",
            markersize=6,
            capsize=2.5,
        )
    axes.set_yticks(range(len(layers)), _marked(data, layers), fontsize="small")
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.set(xlabel="sparsity minus ERK's")
    _title(figure, f"{data.model} at {short_percent(target)}")
    _legend(figure, 4)
    return figure


def gap(data: ReportData) -> Figure | None:
    """rr minus erk accuracy at each sparsity, paired by seed."""
    found = gaps(data)
    if not found:
        return None
    figure, axes = _axes(6.4, 3.6)
    axes.axhline(0, color=colours(["erk"])["erk"], linewidth=1.5)
    for repair, dash in zip(dict.fromkeys(each.repair for each in found), DASHES * len(found), strict=False):
        points = [each for each in found if each.repair == repair]
        axes.errorbar(
            [100 * each.sparsity for each in points],
            [100 * each.estimate.mean for each in points],
            yerr=[100 * (each.estimate.error or 0) for each in points],
            label=f"repair {repair}",
            color=colours(["rr"])["rr"],
            marker="o",
            linestyle=dash,
            capsize=3,
        )
    axes.set(xlabel="target sparsity, %", ylabel="rr minus erk, points")
    _title(figure, f"{data.model} on {data.data}")
    _ticks(axes, sparsities(data))
    words = how_measured([each.estimate for each in found]).replace("cells", "points")
    figure.supxlabel(f"paired by seed; {words}", fontsize="x-small", color=SOFT)
    if len({each.repair for each in found}) > 1:
        axes.legend(frameon=False, fontsize="small")
    return figure


def transition(data: ReportData) -> Figure | None:
    """The series over sparsity; the core and the broad band shaded."""
    found = data.transition
    if found is None:
        return None
    figure, axes = _axes(6.4, 4.0)
    for key, shade, alpha in (("broad", BROAD, 0.25), ("core", CORE, 0.22)):
        if found[key] is not None:
            low, high = (100 * bound for bound in found[key])
            axes.axvspan(low, high, facecolor=(shade, alpha), edgecolor=(shade, 3 * alpha), linewidth=1.5, label=key)
    points = [100 * s for s in found["sparsities"]]
    colour = colours(found["series"])
    for (name, values), marker in zip(found["series"].items(), "oD^vsP*<>" * len(found["series"]), strict=False):
        heights = [np.nan if value is None else value for value in values]
        axes.plot(points, heights, label=name, color=colour[name], marker=marker, markersize=4.5, linewidth=1.5)
    axes.set(xlabel="sparsity, %", ylabel=str(found["method"]))
    _title(figure, f"{data.model} on {data.data}")
    _legend(figure, 5)
    return figure


def _marked(data: ReportData, layers: list[str]) -> list[str]:
    return [f"{layer} ◆" if layer in data.projections else layer for layer in layers]


FIGURES: dict[str, Callable[[ReportData], Figure | None]] = {
    "accuracy": accuracy,
    "heatmap": heatmap,
    "gap": gap,
    "transition": transition,
}


def named_figures(data: ReportData) -> dict[str, Figure]:
    """Every figure the data can fill, by the name of its file."""
    found = {name: draw(data) for name, draw in FIGURES.items()}
    found |= {f"layerwise_{100 * target:g}": layerwise(data, target) for target in targets(data)}
    return {name: figure for name, figure in found.items() if figure is not None}


def render(figure: Figure, kind: str) -> bytes:
    """A figure as the bytes of a png, pdf or svg file, the same bytes each time."""
    from matplotlib import rc_context

    out = io.BytesIO()
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with rc_context({"svg.hashsalt": "repairability"}):
        figure.savefig(out, format=kind, dpi=160, metadata=metadata)
    return out.getvalue()
