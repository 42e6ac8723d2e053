"""A table as Markdown or LaTeX, escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence

from repairability.tables import Table

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "\N{MINUS SIGN}": "$-$",
    "\N{EN DASH}": "--",
    "·": r"$\cdot$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
LONG = 45
"""Rows from which a LaTeX table breaks across pages."""


def escape_markdown(text: str) -> str:
    """One line of GitHub Markdown that shows `text` as it is."""
    return re.sub(r"([\\`*_|<>\[\]$~&])", r"\\\1", " ".join(text.split()))


def escape_latex(text: str) -> str:
    """LaTeX that shows `text` as it is."""
    return "".join(LATEX.get(character, character) for character in " ".join(text.split()))


def to_markdown(table: Table) -> str:
    """A GitHub Markdown table, its title above and its caption below."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(map(escape_markdown, cells))} |"

    ruler = "| --- |" + " ---: |" * (len(table.columns) - 1)
    parts = [f"**{escape_markdown(table.title)}**"] if table.title else []
    parts.append("\n".join([line(table.columns), ruler, *map(line, table.rows)]))
    if table.caption:
        parts.append(escape_markdown(table.caption))
    return "\n\n".join(parts) + "\n"


def to_latex(table: Table, label: str = "") -> str:
    """A booktabs table; a `longtable` when it would not fit a page."""

    def line(cells: Sequence[str]) -> str:
        return f"{' & '.join(map(escape_latex, cells))} \\\\"

    columns = "l" + "r" * (len(table.columns) - 1)
    words = ". ".join(part for part in (table.title, table.caption) if part)
    named = [f"\\caption{{{escape_latex(words)}}}"] if words else []
    plain = re.sub(r"[^\w.:-]", "-", label)
    named += [f"\\label{{tab:{plain}}}"] if label else []
    body = [r"\toprule", line(table.columns), r"\midrule", *map(line, table.rows), r"\bottomrule"]
    if len(table.rows) >= LONG:
        body.insert(3, r"\endhead")
        title = [f"{''.join(named)} \\\\"] if named else []
        lines = ["% needs booktabs and longtable", f"\\begin{{longtable}}{{{columns}}}", *title, *body]
        return "\n".join([*lines, r"\end{longtable}"]) + "\n"
    lines = ["% needs booktabs", r"\begin{table}", r"\centering", *named, f"\\begin{{tabular}}{{{columns}}}", *body]
    return "\n".join([*lines, r"\end{tabular}", r"\end{table}"]) + "\n"
