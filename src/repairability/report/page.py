"""One page that needs nothing else, of any report: the one import of jinja2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from repairability._html.fragments import page_style
from repairability.errors import MissingExtraError
from repairability.report.drawing import vega_lite
from repairability.tables import Table

if TYPE_CHECKING:
    from altair import LayerChart

FOLDER = Path(__file__).parent
Card = tuple[str, str, str]
"""A label, a number and a note."""


@dataclass(frozen=True)
class Switch:
    """What a reader may choose: a parameter of charts, or which panels are shown. Many options are `long`."""

    name: str
    options: Mapping[str, str]
    long: bool = False


@dataclass(frozen=True)
class Panel:
    """Charts and tables that stand together, after their switch.

    `when`, as "target=90", says which option shows the block; the first of such panels has the switch itself. `folded`
    are the words behind which the tables hide.
    """

    charts: Mapping[str, LayerChart] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    switch: Switch | None = None
    when: str = ""
    folded: str = ""


@dataclass(frozen=True)
class Part:
    """A section of the page: words by their class, then panels, then a list."""

    name: str
    title: str
    panels: Sequence[Panel]
    link: str = ""
    words: Sequence[tuple[str, str]] = ()
    list: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A whole page; `csv` holds each table's file by its name."""

    title: str
    eyebrow: str
    cards: Sequence[Card]
    parts: Sequence[Part]
    csv: Mapping[str, str]
    projections: Sequence[str] = ()
    nothing: str = "There is nothing to show."

    def html(self) -> str:
        """As text; opening it asks nothing of any network."""
        try:
            import jinja2
        except ModuleNotFoundError as error:
            raise MissingExtraError("jinja2", "report") from error
        files, strict = jinja2.FileSystemLoader(FOLDER), jinja2.StrictUndefined
        environment = jinja2.Environment(
            loader=files, autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters["tight"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")  # no line begins with %
        panels = [panel for part in self.parts for panel in part.panels]
        charts = {name: _alive(chart) for panel in panels for name, chart in panel.charts.items()}
        json = script_json({"charts": {name: chart["spec"] for name, chart in charts.items()}, "csv": self.csv})
        style, script = page_style(), (FOLDER / "page.js").read_text(encoding="utf-8")
        more = {"charts": charts, "json": json, "style": style, "script": script, "vega": _vega() if charts else ""}
        return environment.get_template("page.html").render(**vars(self), **more)


def _alive(chart: LayerChart) -> dict[str, Any]:
    """A chart as the page shows it: as wide as its place, in the page's type, its title beside it."""
    spec = chart.to_dict()
    spec.pop("$schema")  # an address
    title, words = " ".join(spec.pop("title")["text"]), spec["description"]
    spec["background"] = "transparent"
    spec["config"]["font"] = "system-ui, sans-serif"
    # on a phone two legends do not stand side by side
    spec["config"]["legend"]["layout"] = {"bottom": {"anchor": "start", "direction": "vertical", "margin": 6}}
    return {"title": title, "words": words, "spec": {**spec, "width": "container", "autosize": "fit-x"}}


@cache
def _vega() -> str:
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vega_lite())


def script_json(value: object) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element. nan and inf become null."""
    text = to_json(value, inf_nan_mode="null").decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
