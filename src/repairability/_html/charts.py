"""Charts as SVG: drawn in the text's own colour, so that they stand on light and dark ground. Words tell the same to
those who do not see them; a `title` on each mark tells its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

WIDE = 360
"""Units, about the pixels of a phone: on a desk the chart grows, and no text is ever small."""

LETTER = 5.6
"""The width of an average letter at size 10."""

COLOURS = ("#0a7cc4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#8a8f98")
"""Okabe and Ito's, told apart by colour-blind readers and visible on both grounds."""

LESS, MORE = "#2a7fc9", "#d9482b"


def dots(values: Mapping[str, float], notes: Mapping[str, str], title: str, words: str) -> str:
    """A dot for each name at its value in [0, 1], on an axis that begins near the lowest."""
    row, top = 17, 8
    left = _label_room(values)
    low = math.floor(20 * min(values.values(), default=0.0)) / 20
    low = low if low < 0.95 else 0.9

    def x(value: float) -> float:
        return left + (WIDE - left - 12) * (value - low) / (1 - low)

    bottom = top + row * len(values)
    marks = _vertical([low + (1 - low) * i / 4 for i in range(5)], x, top, bottom)
    for i, (name, value) in enumerate(values.items()):
        y = top + row * (i + 0.5)
        told = escape(f"{name}: {notes.get(name, f'{value:.4f}')}")
        marks.append(_text(left - 8, y + 3.5, _shortened(name, left), "end"))
        marks.append(f'<line x1="{left}" x2="{WIDE - 12}" y1="{y}" y2="{y}" stroke="currentColor" opacity=".12"/>')
        marks.append(f'<circle cx="{x(value):.1f}" cy="{y}" r="4.5" fill="{COLOURS[0]}"><title>{told}</title></circle>')
    return _figure(marks, bottom + 20, title, words)


def heatmap(rows: Mapping[str, Mapping[float, float]], title: str, words: str, *, neutral: float | None = None) -> str:
    """A tile for each name and sparsity. Of a `neutral` value blue is below it, red above; else more is darker."""
    row, top, left = 17, 4, _label_room(rows, 130)
    points = sorted({point for values in rows.values() for point in values})
    wide = (WIDE - left - 4) / max(1, len(points))
    every = math.ceil(26 / wide)
    known = [value for values in rows.values() for value in values.values()]
    middle = 0.0 if neutral is None else neutral
    reach = max([1e-12, *(abs(value - middle) for value in known)])
    marks = []
    for i, (name, values) in enumerate(rows.items()):
        y = top + row * i
        marks.append(_text(left - 8, y + 12, _shortened(name, left), "end"))
        for j, point in enumerate(points):
            if point not in values:
                continue
            value = values[point]
            colour = MORE if neutral is not None and value > neutral else LESS
            shade = 0.06 + 0.94 * abs(value - middle) / reach
            told = escape(f"{name} at {_percent(point)}: {value:.4g}")
            place = f'x="{left + wide * j:.1f}" y="{y}" width="{wide - 1:.1f}" height="{row - 1}"'
            marks.append(f'<rect {place} fill="{colour}" fill-opacity="{shade:.3f}"><title>{told}</title></rect>')
    bottom = top + row * len(rows)
    for j in range(0, len(points), every):
        marks.append(_text(left + wide * (j + 0.5), bottom + 12, f"{100 * points[j]:g}", "middle"))
    marks.append(_text(WIDE - 4, bottom + 25, "sparsity, %", "end"))
    return _figure(marks, bottom + 32, title, words)


def lines(
    points: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    title: str,
    words: str,
    *,
    shaded: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """A line for each name over sparsities; ranges of them shaded by name; a value that is not there is a gap."""
    left, top, high = 40, 8, 150
    known = [value for values in series.values() for value in values if value is not None]
    low = min([0.0, *known])
    most = max([low + 1e-9, *known])
    first, last = min(points), max(points)

    def x(point: float) -> float:
        return left + 6 + (WIDE - left - 24) * ((point - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return top + high * (1 - (value - low) / (most - low))

    marks = []
    for name, (begin, end) in (shaded or {}).items():
        place = f'x="{x(begin) - 5:.1f}" y="{top}" width="{x(end) - x(begin) + 10:.1f}" height="{high}"'
        marks.append(f'<rect {place} fill="currentColor" opacity=".1"><title>{escape(name)}</title></rect>')
    for i in range(5):
        value = low + (most - low) * i / 4
        edges = f'x1="{left}" x2="{WIDE - 12}" y1="{y(value):.1f}" y2="{y(value):.1f}"'
        marks.append(f'<line {edges} stroke="currentColor" opacity=".15"/>')
        marks.append(_text(left - 6, y(value) + 3.5, f"{value:.2g}", "end"))
    every = math.ceil(len(points) * 30 / (WIDE - left))
    for point in sorted(points)[::every]:
        marks.append(_text(x(point), top + high + 15, f"{100 * point:g}", "middle"))
    marks.append(_text(WIDE - 12, top + high + 29, "sparsity, %", "end"))
    row = top + high + 29
    for i, (name, values) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        seen = [(x(p), y(v), p, v) for p, v in zip(points, values, strict=True) if v is not None]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b, _, _ in seen)
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        for a, b, point, value in seen:
            told = escape(f"{name} at {_percent(point)}: {value:.4g}")
            marks.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"><title>{told}</title></circle>')
        row += 15
        marks.append(f'<circle cx="{left + 6}" cy="{row - 3.5}" r="4" fill="{colour}"/>')
        marks.append(_text(left + 16, row, _shortened(name, WIDE - left)))
    return _figure(marks, row + 8, title, words)


def _figure(marks: Sequence[str], high: float, title: str, words: str) -> str:
    box = f'viewBox="0 0 {WIDE} {high:g}" role="img" aria-label="{escape(f"{title}. {words}", quote=True)}"'
    drawn = f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-size="10" font-family="inherit">{"".join(marks)}</svg>'
    told = f"<figcaption>{escape(words)}</figcaption>"
    return f'<figure class="plot static"><h3>{escape(title)}</h3>{drawn}{told}</figure>'


def _vertical(values: Sequence[float], x: Callable[[float], float], top: float, bottom: float) -> list[str]:
    marks = []
    for value in values:
        at = x(value)
        edges = f'x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"'
        marks.append(f'<line {edges} stroke="currentColor" opacity=".15"/>')
        marks.append(_text(at, bottom + 14, f"{value:.4g}", "middle"))
    return marks


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'


def _label_room(names: Mapping[str, object], most: float = 150) -> float:
    return min(most, 14 + LETTER * max(map(len, names), default=0))


def _shortened(name: str, room: float) -> str:
    """Its beginning and its end, which tell layers apart."""
    most = int((room - 12) / LETTER)
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most - most // 2) :]}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:g} %"
