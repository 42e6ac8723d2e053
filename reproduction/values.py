"""Numbers of a page's sentences, read from the records: what stands between double braces becomes text.

`{{main_results cifar100 95% rr}}`: the mean accuracy over seeds of one cell of a study, in per cent; words are values
of its settings, in any order. `{{main_results cifar100 95% rr - erk}}`: the difference of two cells that differ in one
word; `best` and `worst` stand for the rule with the highest and the lowest mean. A last word `.2` asks for two digits.
`{{dense STUDY}}`: what the network keeps unpruned. `{{cell STUDY SECTION | LABEL; LABEL | COLUMN}}`: a cell of a table
as printed. `{{count STUDY SECTION}}`: how many rows a section's first table has; `{{count STUDY SECTION | COLUMN |
TEXT}}`: in how many of them a column reads so. `{{paper TABLE | LABEL; LABEL | COLUMN}}`: a cell of the paper's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

from repairability.errors import InputError
from repairability.experiments.record import Record
from repairability.experiments.spec import RunSpec
from repairability.report.sections.groups import done, ends
from repairability.report.store import Studies
from repairability.tables import Table
from reproduction.paper import paper_table

VALUE = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)
EXTREMES = {"best": max, "worst": min}
Runs = Sequence[Record]


def with_values(text: str, studies: Studies) -> str:
    """The text with every expression in its place worked out."""
    return VALUE.sub(lambda found: value(found[1], studies), text)


def value(expression: str, studies: Studies) -> str:
    """What one expression stands for."""
    head, *rest = (part.strip() for part in " ".join(expression.split()).split("|"))
    kind, *words = head.split()
    try:
        if kind == "paper":
            return _cell([(tuple(row.values()), row) for row in paper_table(*words)], *rest)
        if kind == "cell":
            return _cell(_rows(studies.tables(*words)[0]), *rest)
        if kind == "count":
            column, wanted = rest or ("", "")
            rows = [row for _, row in _rows(studies.tables(*words)[0]) if not column or row[column] == wanted]
            return str(len(rows))
        if kind == "dense":
            return _dense(done(studies.given[words[0]][1]))
        return _accuracy(done(studies.given[kind][1]), words)
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{{{{{expression}}}}}: {error}") from error


def _rows(table: Table) -> list[tuple[tuple[str, ...], dict[str, str]]]:
    return [(tuple(row), dict(zip(table.columns, row, strict=True))) for row in table.rows]


def _cell(rows: Sequence[tuple[Sequence[str], dict[str, str]]], labels: str, column: str) -> str:
    """The one row that has all labels, in this column."""
    wanted = [label.strip() for label in labels.split(";")]
    found = [row for cells, row in rows if all(label in cells for label in wanted)]
    if len(found) != 1:
        raise InputError(f"{len(found)} rows have the labels {wanted}")
    return found[0][column]


def _dense(runs: Runs) -> str:
    known = {run.result["dense_top1"] for run in runs}
    if len(known) != 1:
        raise InputError(f"its runs have {len(known)} dense accuracies, where one is meant")
    return f"{100 * known.pop():.1f}"


def _accuracy(runs: Runs, words: list[str]) -> str:
    digits = int(words.pop()[1:]) if re.fullmatch(r"\.\d", words[-1]) else 1
    if "-" not in words:
        return f"{100 * fmean(_by_seed(runs, words).values()):.{digits}f}"
    place = words.index("-")
    shared, pair = [*words[: place - 1], *words[place + 2 :]], (words[place - 1], words[place + 1])
    first, second = (_by_seed(runs, [*shared, word]) for word in pair)
    return f"{100 * fmean(first[seed] - second[seed] for seed in first):+.{digits}f}"


def _by_seed(runs: Runs, words: Sequence[str]) -> dict[int, float]:
    """Top-1 accuracies of one cell."""
    chosen = runs
    for word in words:
        if word not in EXTREMES:
            chosen = [run for run in chosen if word in _words(run.spec)]
            if not chosen:
                raise InputError(f"no run has {word!r} beside the words before it")
    cells: dict[str, dict[int, float]] = {}
    for run in chosen:
        cells.setdefault(run.spec.model_dump_json(exclude={"seed"}), {})[run.spec.seed] = run.result["top1"]
    for word in words:
        if word in EXTREMES:
            if len({run.spec.model_dump_json(exclude={"seed", "rule", "options"}) for run in chosen}) > 1:
                raise InputError("best and worst are of rules in one setting; these runs are of several")
            return EXTREMES[word](cells.values(), key=lambda cell: fmean(cell.values()))
    if len(cells) != 1:
        raise InputError(f"{len(cells)} cells have these words, where one is meant")
    return next(iter(cells.values()))


def _words(spec: RunSpec) -> set[str]:
    """By what a run may be called."""
    grid = spec.grid if isinstance(spec.grid, str) else "-".join(ends(list(spec.grid)).split(" to "))
    pinned = [f"pinned={level:g}" for level in spec.options.get("pinned", {}).values()]
    named = {spec.model, spec.data, spec.rule, spec.score, spec.repair, spec.observe}
    return {*named, f"{100 * spec.sparsity:g}%", f"grid={grid}", f"images={spec.count}", *pinned}
