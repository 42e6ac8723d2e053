"""The verb detect: where recovery will collapse."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from typer import Option

import repairability as rp
from repairability.cli import options
from repairability.cli.output import show, write_json


@dataclass(frozen=True)
class Cts:
    """What `find_transition` takes for the method cts."""

    panel: ClassVar[str] = "For cts"
    reference: str = Option("erk", help="The rule that rr is compared with.")
    low: float = Option(0.90, help="The anchor without stress.")
    high: float = Option(0.975, help="The anchor of full stress.")
    strict: bool = Option(True, "--strict/--interpolate", help="Measure rr at each allocation's own sparsities.")


def verb(
    network: options.Network,
    source: options.DataSource,
    choice: options.LayerChoice,
    machine: options.Machine,
    cts: Cts,
    method: str = Option("cts", help=f"{options.METHODS}: see above."),
    sparsities: str = Option("", help="The sweep, with commas between. Default: the method's."),
    null: bool = Option(True, help="Also run the detector without the information it claims to use."),
    seeds: int = options.SEEDS,
    seed: int = options.SEED,
    count: int = options.COUNT,
    as_json: bool = options.AS_JSON,
    out: Path | None = Option(None, metavar="FILE", help="Write it: .json, or .html for a page with the plot."),
) -> None:
    """Say where the choice of rule matters and where recovery ends, from unlabeled images alone.

    cts: the paper's score on single layers, in one pass. agreement: prune, repair and compare with the dense network on
    held-out images at each sparsity; dearer, and about the joint network.

    Example: repairability detect digits --data digits --method agreement
    """
    from repairability.calibration import HELD_OUT
    from repairability.detect import METHODS
    from repairability.errors import unknown

    draws = options.draws(seed, seeds)
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    settings: dict[str, Any] = {"method": method, "null": null, **vars(cts)}
    settings["sparsities"] = options.sparsities_of(sparsities, "--sparsities") if sparsities else None
    settings["config"] = rp.PruneConfig(count=count, **choice.settings())
    model = network.build(seed, machine.ready())
    data, held_out = source.read(), HELD_OUT if method == "agreement" else 0
    transitions = [
        rp.find_transition(model, options.calibration_images(data, count, draw, held_out), **settings) for draw in draws
    ]
    result: dict[str, Any] = {"model": network.model, "data": data.name}
    result["draws"] = [transition.to_dict() for transition in transitions]
    agreed, line = _consensus(transitions), ""
    if agreed is not None:
        votes = {f"{sparsity:g}": votes for sparsity, votes in agreed.votes.items()}
        result["consensus"] = {"stable": agreed.stable, "majority": agreed.majority, "votes": votes}
        counted = ", ".join(f"{100 * sparsity:g} %: {votes}" for sparsity, votes in agreed.votes.items() if votes)
        line = f"over {seeds} draws: stable core {_words(agreed.stable)}, majority core {_words(agreed.majority)}\n"
        line += f"draws with a point in the core: {counted or 'none'}"
    if out and out.suffix == ".html":
        from repairability.report import ReportData, write_report

        title = f"Transition of {network.model}"
        write_report(ReportData(title, network.model, data.name, transition=transitions[0].for_report()), out)
    elif out:
        write_json(out, result)
    show(as_json, result, *(transition.table() for transition in transitions), line=line if seeds > 1 else "")


def _consensus(transitions: list[rp.Transition]) -> Any:
    """What the draws agree on. Refined sweeps may differ from draw to draw; then points cannot be counted."""
    from repairability.transition import consensus

    sweeps = {transition.sparsities for transition in transitions}
    return consensus([transition.core for transition in transitions], *sweeps) if len(sweeps) == 1 else None


def _words(interval: tuple[float, float] | None) -> str:
    return "none" if interval is None else f"{100 * interval[0]:g} to {100 * interval[1]:g} %"
