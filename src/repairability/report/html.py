"""ReportData -> one page that needs nothing else: the one import of jinja2 and of plotly."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from repairability.errors import MissingExtraError
from repairability.report.data import ReportData
from repairability.report.estimates import gaps
from repairability.report.payload import MEASURES, accuracy_words, best, gap_words, payload, transition_words
from repairability.report.tables import named_tables, short_percent

FOLDER = Path(__file__).parent
MOST_CARDS = 6
"""Of more sparsities than these the cards show an even choice."""


def page(data: ReportData) -> str:
    """The whole page as text; opening it asks nothing of any network."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise MissingExtraError("plotly", "report") from error
    drawn = payload(data)
    return filled(
        "template.html",
        data=data,
        drawn=drawn,
        cards=cards(data),
        tables=named_tables(data),
        measures=MEASURES,
        repairs=list(dict.fromkeys(str(row["repair"]) for row in data.results)),
        has_gap=bool(gaps(data)),
        words={"accuracy": accuracy_words(data), "gap": gap_words(data), "transition": transition_words(data)},
        json=script_json(drawn),
        plotly=get_plotlyjs(),
        scripts=[(FOLDER / name).read_text(encoding="utf-8") for name in ("page_tables.js", "page_plots.js")],
    )


def filled(template: str, **values: Any) -> str:
    """A template of this folder with the page's style and these values, escaped."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise MissingExtraError("jinja2", "report") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tight"] = tight
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(style=style, **values)


def tight(text: str) -> str:
    """No line begins with a percent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def script_json(value: object) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element. nan and inf become null."""
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cards(data: ReportData) -> list[dict[str, str]]:
    """The few numbers to see first: a label, a number and a note each."""
    found = []
    if data.dense is not None:
        bn = data.dense.get("top1_bn")
        note = f"n = {data.dense['n']:,}" + ("" if bn is None else f"; BN recalibrated {100 * bn:.2f} %")
        found.append({"label": "Dense top-1", "number": f"{100 * data.dense['top1']:.2f} %", "note": note})
    ranks = best(data)
    step = max(1.0, (len(ranks) - 1) / (MOST_CARDS - 1))
    for rank in [ranks[round(i * step)] for i in range(min(MOST_CARDS, len(ranks)))]:
        estimate, label = rank["first"]
        note = label
        if rank["next"] is not None:
            other, other_label = rank["next"]
            note += f"; next {other_label} {100 * other.mean:.2f} %"
        number = f"{100 * estimate.mean:.2f} %"
        found.append({"label": f"Best at {short_percent(rank['sparsity'])}", "number": number, "note": note})
    layers = data.diagnosis.rr if data.diagnosis is not None else next(iter(data.allocations), None)
    if layers is not None:
        inside = sum(layer in layers for layer in data.projections)
        note = f"{inside} of them projections" if inside else "prunable"
        found.append({"label": "Layers", "number": str(len(layers)), "note": note})
    if data.diagnosis is not None:
        found.append({"label": "Calibration images", "number": f"{data.diagnosis.images:,}", "note": "without labels"})
    repairs = dict.fromkeys(str(row["repair"]) for row in data.results)
    if data.diagnosis is not None and not repairs:
        repairs = {data.diagnosis.repair: None}
    if repairs:
        measured = "" if data.diagnosis is None else f"diagnosed with {data.diagnosis.repair}"
        found.append({"label": "Repair", "number": ", ".join(repairs), "note": measured})
    return found
