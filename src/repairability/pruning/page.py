"""The page of a single run: what was pruned, where, what it weighs now, how to go on."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from repairability._html import code, document, section, table
from repairability.tables import Table, percent

if TYPE_CHECKING:
    from repairability.pruning.result import PruneResult

GO_ON = """\
import repairability as rp

result.save("pruned.safetensors", format="sparse")        # near the entropy of what stays
again = rp.load("pruned.safetensors", model).model        # model: the network as it was built
fast = rp.accelerate(again, images[:1])                   # a sparse runtime for CPUs (extra runtime)
rp.evaluate(again, labeled_batches)                       # where there are labels
"""

COMMANDS = """\
repairability info pruned.safetensors
repairability evaluate MODEL --data DATA --checkpoint pruned.safetensors
repairability accelerate MODEL --checkpoint pruned.safetensors
"""


def run_page(result: PruneResult, title: str) -> str:
    """As text; opening it needs nothing else."""
    allocation, sizes = result.allocation, result.sizes()
    target = "" if allocation.target is None else f"target {percent(allocation.target)}; "
    cards = [
        ("Recipe", result.recipe or "not named", f"{allocation.rule}, {result.score}, {result.repair}"),
        (
            "Sparsity",
            percent(result.sparsity),
            f"{target}{percent(result.global_sparsity)} of all such weights",
        ),
        ("Time", f"{result.seconds:.1f} s", ", ".join(f"{stage} {s:.1f}" for stage, s in result.timings.items())),
        ("File", f"{sizes['sparse']:,} bytes", f"sparse; with its zeros {sizes['dense']:,} bytes"),
    ]
    if result.coverage is not None:
        cards.append(("May be pruned", percent(result.coverage), f"of {allocation.parameters:,} parameters"))
    chosen = next((trial for trial in result.trials if trial.chosen), None)
    if chosen is not None and chosen.same is not None:
        cards.append(("Same prediction", percent(chosen.same), "as the dense network, on held-out unlabeled images"))
    layers = replace(result.table(), caption="")
    parts = [section("layers", "Where the sparsity went", *allocation.charts(), table(layers, "layers"))]
    if result.diagnosis is not None:
        measured = result.diagnosis
        words = f"<p>Repair {escape(measured.repair)}, measured on {measured.images:,} unlabeled images.</p>"
        drawn = f'<div class="pair">{"".join(measured.charts())}</div>'
        parts.append(section("diagnosis", "How repairable each layer is", words, drawn))
    if result.trials:
        parts.append(section("trials", "What was tried", table(result.trials_table(), "trials")))
    parts.append(section("bytes", "Bytes and work", table(_weighed(result, sizes), "bytes")))
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    if notes:
        parts.append(section("notes", "What the repair did", f"<ul>{notes}</ul>"))
    parts.append(section("next", "How to go on", code(GO_ON), code(COMMANDS)))
    return document(title, f"{len(allocation)} layers; calibration {result.fingerprint}", cards, parts)


def _weighed(result: PruneResult, sizes: dict[str, int]) -> Table:
    rows = [
        ("weights that may be pruned", f"{sum(result.allocation.totals.values()):,}"),
        ("of them zero", f"{result.allocation.pruned_total:,}"),
        ("dense file, bytes", f"{sizes['dense']:,}"),
        ("sparse file, bytes", f"{sizes['sparse']:,}"),
        ("times smaller", f"{sizes['dense'] / sizes['sparse']:.2f}"),
    ]
    if result.work is not None:
        rows.append(("multiply-adds of these layers that are gone", percent(result.work)))
    if result.memory_mb is not None:
        rows.append(("memory at the peak of the run, MB more", f"{result.memory_mb:,.0f}"))
    return Table(("what", "value"), rows)
