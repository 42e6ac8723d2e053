"""How charts are drawn: their marks, axes, legends and files. The one import of altair and vl_convert."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from repairability.errors import MissingExtraError
from repairability.report.methods import styles

if TYPE_CHECKING:
    from altair import LayerChart

Row = dict[str, Any]
Style = Mapping[str, tuple[str, str]]
"""The colour and the shape of each name."""

# Shapes that Vega has no name for, in a square from -1 to 1.
SHAPES = {
    "x": "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z",
    "star": "M0,-1.1L.26,-.36L1.05,-.34L.42,.14L.65,.89L0,.44L-.65,.89L-.42,.14L-1.05,-.34L-.26,-.36Z",
    "hexagon": "M0,-1L.87,-.5L.87,.5L0,1L-.87,.5L-.87,-.5Z",
}
DASHES = ([1, 0], [6, 4], [2, 3], [7, 3, 2, 3])
BAND, SOFT, GREY = "#d55e00", "#59636e", "#7d8590"
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""vl-convert brings the first, so that a text is as wide everywhere. One weight: of two, the order in a PDF changes."""
TYPE = {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": 400}
WIDTH = 470
ROOM = {"labelOverlap": "greedy", "labelSeparation": 5}
"""A label where there is room for it."""
PROJECTION = "♦"
ALL = "all"
"""What the parameter `repair` says when every repair is shown."""
COUNTED = re.compile(r"(?<=[\"#])(gradient_|clip)\d+(?=[\")])")
"""How an SVG names its gradients and clips."""
REFERENCES = re.compile(rb"(?:^ +/\w+ \d+ 0 R\n)+", re.MULTILINE)
"""What an object of a PDF refers to, in an order that changes from time to time."""


def altair() -> Any:
    """The library that describes charts, imported when the first is wanted."""
    try:
        import altair
        import vl_convert  # noqa: F401  # which draws them
    except ModuleNotFoundError as error:
        package = "vl-convert-python" if "vl_convert" in str(error) else "altair"
        raise MissingExtraError(package, "report") from error
    return altair


def rows_of(rows: Iterable[Row]) -> Any:
    return altair().Chart(altair().Data(values=list(rows)))


def chart(
    layers: Sequence[Any], title: str, words: str, *, note: str = "", height: Any = 270, **more: Any
) -> LayerChart:
    """The layers as one chart; `words` tell those who do not see it, `note` stands under its title.
    The page sets the parameter `room` to the width of the whole."""
    alt = altair()
    heading = alt.Title(textwrap.wrap(title, 60), subtitle=textwrap.wrap(note, 80), anchor="start", offset=12)
    drawn: LayerChart = (
        alt.layer(*layers)
        .add_params(alt.param(name="room", value=WIDTH + 60))
        .properties(title=heading, description=words, width=WIDTH, height=height, background="white", **more)
        .configure(font=FONT, aria=False)
        .configure_view(stroke=None)
        .configure_title(fontSize=15, fontWeight=400, subtitleColor=SOFT, subtitlePadding=5)
        .configure_axis(gridColor="#e3e6ea", domainColor="#c5cad1", tickSize=0, labelPadding=6, **TYPE)
        .configure_legend(orient="bottom", title=None, labelFontSize=12, symbolSize=100, symbolStrokeWidth=0, offset=10)
    )
    return drawn


def lines(
    rows: Sequence[Row], style: Style, x: str, y: str, number: str, *, zero: bool = False, legend: bool = True
) -> list[Any]:
    """A line with points and error bars for each name, over sparsities in %.

    Several repairs differ by dash, and the page shows one of them by the parameter `repair`. Of rows that have a layer
    only those are shown that the parameter `layer` says.
    """
    alt = altair()
    rules = _key(style) if legend else None
    axis = alt.Axis(values=sorted({row["sparsity"] for row in rows}), format=".4~f", **ROOM)
    base = rows_of(rows).encode(
        x=alt.X("sparsity:Q", title=x, axis=axis, scale=alt.Scale(zero=False, nice=False, padding=14)),
        y=alt.Y("value:Q", title=y, scale=alt.Scale(zero=zero)),
        **_coloured(style, rules),
    )
    dash, hover = {}, [alt.Tooltip("name:N", title="line"), alt.Tooltip("sparsity:Q", title=x, format=".4~f")]
    hover.append(alt.Tooltip("value:Q", title=y, format=number))
    hover += [f"{name}:N" for name in ("repair", "layer", "seeds") if name in rows[0]]
    repairs = list(dict.fromkeys(row["repair"] for row in rows if "repair" in row))
    if len(repairs) > 1:
        base = base.add_params(alt.param(name="repair", value=ALL))
        base = base.transform_filter(f"repair == '{ALL}' || datum.repair == repair")
        scale = alt.Scale(domain=repairs, range=[DASHES[i % len(DASHES)] for i in range(len(repairs))])
        key = _key(repairs, symbolType="stroke", symbolSize=300, symbolStrokeColor=GREY, symbolStrokeWidth=1.5)
        dash = {"strokeDash": alt.StrokeDash("repair:N", scale=scale, legend=key)}
    if "layer" in rows[0]:
        base = base.transform_filter("datum.layer == layer")
    bars = [base.mark_errorbar(ticks=True).encode(yError="error:Q")] if "error" in rows[0] else []
    return _pickable([base.mark_line(strokeWidth=2).encode(**dash), *bars, _points(base, style, rules, hover)])


def dots(rows: Sequence[Row], labels: Mapping[str, str], x: str, number: str) -> list[Any]:
    """A dot for each layer and name, with error bars where there are errors."""
    alt = altair()
    style = styles(row["name"] for row in rows)
    key = _key(style, margin=160)
    base = rows_of({**row, "label": labels[row["layer"]]} for row in rows).encode(
        x=alt.X("value:Q", title=x, scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(tickCount=6, **ROOM)),
        y=layer_axis(labels),
        **_coloured(style, key),
    )
    hover = ["layer:N", alt.Tooltip("name:N", title="rule"), alt.Tooltip("value:Q", title=x, format=number)]
    bars = base.transform_filter("datum.error > 0").mark_errorbar(ticks={"size": 8}).encode(xError="error:Q")
    return _pickable([_points(base, style, key, hover), *([bars] if any(row.get("error") for row in rows) else [])])


def _coloured(style: Style, key: Any) -> dict[str, Any]:
    """A colour for each name, and the others faint once the legend has picked some."""
    alt = altair()
    opacity = alt.when(_picked()).then(alt.value(1)).otherwise(alt.value(0.1))
    scale = alt.Scale(domain=list(style), range=[colour for colour, _ in style.values()])
    return {"color": alt.Color("name:N", scale=scale, legend=key), "opacity": opacity}


def _points(base: Any, style: Style, key: Any, hover: Sequence[Any]) -> Any:
    """Each name has its shape; an unseen rim makes it easier to hit with a mouse."""
    alt = altair()
    scale = alt.Scale(domain=list(style), range=[SHAPES.get(shape, shape) for _, shape in style.values()])
    points = base.mark_point(filled=True, size=70, stroke="black", strokeOpacity=0, strokeWidth=12)
    return points.encode(shape=alt.Shape("name:N", scale=scale, legend=key), tooltip=hover)


def _pickable(layers: Sequence[Any]) -> list[Any]:
    """A click into the legend picks a name or lets it go. Vega-Lite asks only the first of the layers that share it."""
    first, *others = layers
    return [first.properties(name="names").add_params(_picked()), *others]


def _picked() -> Any:
    return altair().selection_point(name="picked", fields=["name"], bind="legend", toggle="true")


def _key(names: Iterable[str], margin: int = 60, **more: Any) -> Any:
    """A legend with as many columns as there is room for beside the axis."""
    alt = altair()
    entry = 30 + 6 * max(map(len, names))
    return alt.Legend(columns=alt.ExprRef(f"max(1, floor((room - {margin}) / {entry}))"), labelLimit=WIDTH, **more)


def layer_axis(labels: Mapping[str, str], **scale: Any) -> Any:
    """Layers from top to bottom; where there is little room, long names are short in the middle."""
    alt = altair()
    short = "slice(datum.label, 0, 9) + '…' + slice(datum.label, -8)"
    words = f"room < 480 && length(datum.label) > 18 ? {short} : datum.label"
    axis = alt.Axis(labelExpr=words, labelLimit=300, domain=False, grid=False)
    return alt.Y("label:N", title=None, sort=None, axis=axis, scale=alt.Scale(domain=list(labels.values()), **scale))


def layer_labels(layers: Iterable[str], projections: Iterable[str]) -> dict[str, str]:
    """Names for an axis: without the parts all share in front, short in the middle, numbered where two are then equal;
    projections are marked."""
    names, marked = list(layers), set(projections)
    parts = [name.split(".") for name in names]
    shared = 0
    while len(names) > 1 and all(len(part) > shared + 1 and part[shared] == parts[0][shared] for part in parts):
        shared += 1
    short = [".".join(part[shared:]) for part in parts]
    short = [name if len(name) <= 35 else f"{name[:17]}…{name[-17:]}" for name in short]
    clear = len(set(short)) == len(short)
    return {
        name: f"{f'{PROJECTION} ' if name in marked else ''}{'' if clear else f'{i} '}{text}"
        for i, (name, text) in enumerate(zip(names, short, strict=True), 1)
    }


def shaded(bands: Mapping[str, Sequence[float]]) -> list[Any]:
    """Bands of sparsity, each with its name at the bottom; the later lie upon the earlier ones."""
    alt = altair()
    ends = [(name, 100 * low, 100 * high) for name, (low, high) in bands.items()]
    base = rows_of(
        {"name": x, "sparsity": low, "end": high, "dy": -4 - 14 * i} for i, (x, low, high) in enumerate(ends)
    )
    base = base.encode(x="sparsity:Q")
    areas = base.mark_rect(color=BAND, fillOpacity=0.12, stroke=BAND, strokeOpacity=0.4).encode(x2="end:Q")
    names = base.mark_text(align="left", baseline="bottom", dx=4, dy=alt.ExprRef("datum.dy"), color=SOFT)
    return [areas, names.encode(y=alt.value("height"), text="name:N")]


def level(
    value: float, words: str = "", colour: str = GREY, axis: str = "y", dash: Sequence[int] = (1, 0)
) -> list[Any]:
    """A line at one value of an axis, with words at its end."""
    base = rows_of([{"value": value, "words": words}]).encode(**{axis: "value:Q"})
    line = base.mark_rule(color=colour, strokeWidth=1.5, strokeDash=list(dash))
    text = base.mark_text(align="right", baseline="bottom", dy=-3, color=SOFT)
    return [line, text.encode(x=altair().value("width"), text="words:N")] if words else [line]


def drawn_by() -> str:
    """What draws, as each SVG says in a comment: of another version's the bytes may differ."""
    return f"altair {version('altair')}, vl-convert {version('vl-convert-python')}"


def render(chart: LayerChart, kind: str) -> bytes:
    """A chart as the bytes of a png, pdf or svg file, the same bytes each time."""
    import vl_convert

    spec, of = chart.to_dict(), vega_lite()
    if kind == "png":
        return vl_convert.vegalite_to_png(spec, of, ppi=160)
    if kind == "pdf":
        return REFERENCES.sub(_sorted, vl_convert.vegalite_to_pdf(spec, of))
    text = vl_convert.vegalite_to_svg(spec, of).replace(">", f"><!-- {drawn_by()} -->", 1)
    counted = list(dict.fromkeys(name[0] for name in COUNTED.finditer(text)))  # Vega counts on from chart to chart
    return COUNTED.sub(lambda name: f"{name[1]}{counted.index(name[0]) + 1}", text).encode()


def _sorted(lines: re.Match[bytes]) -> bytes:
    return b"".join(sorted(lines[0].splitlines(keepends=True)))


def vega_lite() -> str:
    """The version of Vega-Lite that these charts are written in, as vl_convert names it."""
    major, minor, _ = str(altair().SCHEMA_VERSION).removeprefix("v").split(".")
    return f"{major}.{minor}"
