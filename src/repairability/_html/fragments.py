"""Pieces of a page: a table, a line of code, and the whole of what a notebook shows of one value."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Protocol

FOLDER = Path(__file__).parent


class Tabular(Protocol):
    """What `tables.Table` is; that file stands on this one."""

    @property
    def columns(self) -> Sequence[str]: ...
    @property
    def rows(self) -> Sequence[Sequence[str]]: ...
    @property
    def title(self) -> str: ...
    @property
    def caption(self) -> str: ...


STYLE = """
.repairability-view { max-width: 60rem; overflow-wrap: anywhere; }
.repairability-view .charts { display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: flex-start; }
.repairability-view .plot { flex: 1 1 20rem; max-width: 30rem; min-width: 0; margin: 0; }
.repairability-view .plot svg { width: 100%; height: auto; display: block; }
.repairability-view h3 { font-size: 1em; margin: .6em 0 .4em; }
.repairability-view figcaption, .repairability-view .caption { font-size: .85em; opacity: .75; margin: .4em 0 0; white-space: pre-line; }
.repairability-view .scroll { overflow: auto; max-height: 26rem; margin-top: .8em; }
.repairability-view table { border-collapse: collapse; font-size: .9em; font-variant-numeric: tabular-nums; }
.repairability-view th, .repairability-view td { padding: .2em .7em; text-align: right; white-space: nowrap; }
.repairability-view th:first-child { text-align: left; }
.repairability-view tbody th { font-weight: 500; }
.repairability-view tr > * { border-bottom: 1px solid rgb(128 128 128 / .25); }
.repairability-view .wide { white-space: normal; min-width: 12rem; text-align: left; }
.repairability-view summary { cursor: pointer; margin: .6em 0; }
"""  # noqa: E501
"""Of a view in somebody else's page: its own class alone, in that page's colours."""


@cache
def page_style() -> str:
    """Of a page of ours."""
    return (FOLDER / "page.css").read_text(encoding="utf-8")


def table(content: Tabular, name: str = "") -> str:
    """With its title above and its caption below; every cell as it is."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in content.columns)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in content.rows)
    title = f"<h3>{escape(content.title)}</h3>" if content.title else ""
    caption = f'<p class="caption">{escape(content.caption)}</p>' if content.caption else ""
    label = escape(name or content.title or "table", quote=True)
    inner = f"<table class=plain><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'{title}<div class="scroll" role="region" tabindex="0" aria-label="{label}">{inner}</div>{caption}'


def _row(cells: Sequence[str]) -> str:
    first, *others = (*cells,)
    return f'<th scope="row">{escape(first)}</th>' + "".join(
        f"<td{WIDE_CELL if len(cell) > 28 else ''}>{escape(cell)}</td>" for cell in others
    )


WIDE_CELL = ' class="wide"'


def code(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>"


def view(charts: Sequence[str], tables: Sequence[Tabular], folded: Sequence[Tabular] = ()) -> str:
    """What a notebook shows of a value; `folded` tables open on a click."""
    drawn = f'<div class="charts">{"".join(charts)}</div>' if charts else ""
    told = "".join(map(table, tables))
    more = "".join(f"<details><summary>{escape(x.title or 'All values')}</summary>{table(x)}</details>" for x in folded)
    return f'<div class="repairability-view"><style>{STYLE}</style>{drawn}{told}{more}</div>'
