"""Section: what a study prints, and what every caption of one says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from repairability.experiments.record import Record
from repairability.report.estimates import Estimate, how_measured, span
from repairability.report.sections.groups import place_of
from repairability.tables import Table

Draw = Callable[[], Any]
"""A chart, drawn when somebody wants it, since tables need no library for charts; None where nothing fills it."""

SMOKE = "Smoke run: figures mean nothing."


@dataclass(frozen=True)
class Section:
    """Tables, charts by name, and the runs they show: of those given, where not all."""

    tables: Sequence[Table]
    figures: Mapping[str, Draw] = field(default_factory=dict)
    records: Sequence[Record] | None = None


def origin(records: Sequence[Record], *, smoke: bool = False) -> str:
    """What every table must carry: network, data, dense accuracy, commit, hardware, failed runs, a smoke run."""
    done = [record for record in records if record.status == "done"]
    failed = len(records) - len(done)
    parts = [f"{'; '.join(dict.fromkeys(map(_place, done)))}."] if done else []
    for name in ("commit", "hardware"):
        known = dict.fromkeys(str(record.provenance[name]) for record in done if name in record.provenance)
        parts += [f"{name.capitalize()}: {', '.join(known)}."] if known else []
    parts += [f"{failed} of {len(records)} runs failed and are left out."] if failed else []
    return " ".join([*parts, *([SMOKE] if smoke else [])])


def _place(record: Record) -> str:
    top1 = record.result.get("dense_top1")
    return place_of(record.spec) + ("" if top1 is None else f" (dense {100 * top1:.2f} %)")


def measured(cells: Sequence[Estimate], scale: float = 100, digits: int = 2, accuracy: bool = True) -> str:
    """Seeds, images and noise of these cells, in words."""
    if not cells:
        return "No runs of ours."
    parts = [f"Ours: {how_measured(cells, 'these cells')}"]
    if accuracy:
        least = min(cell.n for cell in cells)
        worst = f"an accuracy on {least:,} is itself known to ±{98 / least**0.5:.2f} at worst"
        parts.append(f"n = {span(cell.n for cell in cells)} test images ({worst})")
    widths = {(cell.half_width, cell.kind) for cell in cells if cell.half_width is not None}
    if widths:
        kinds = {"std": "Student's t over seeds", "binomial": "binomial, of one seed"}
        how = " or ".join(words for kind, words in kinds.items() if any(kind == other for _, other in widths))
        most = f"{scale * max(width for width, _ in widths):.{digits}f}"
        parts.append(f"95 %: half-width of the interval ({how}), at most {most}")
    return f"{'; '.join(parts)}."
