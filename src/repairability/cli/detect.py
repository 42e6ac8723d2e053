"""The verb detect: where recovery will collapse."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from typer import Option

import repairability as rp
from repairability._files import check_file, check_folder
from repairability.cli import options
from repairability.cli.output import Answer, write_json
from repairability.errors import unknown


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
    method: str = Option(
        "cts", help=f"{options.METHODS}: see above.", autocompletion=options.completing(options.METHODS)
    ),
    sparsities: str = Option("", help="The sweep, with commas between. Default: the method's."),
    null: bool = Option(True, help="Also run the detector without the information it claims to use."),
    grid: str = Option("paper", help="Measured sparsities: paper, or auto: up to 99.5 %."),
    option: list[str] | None = options.RULE_OPTIONS,
    seeds: int = options.SEEDS,
    seed: int = options.SEED,
    count: int = options.COUNT,
    out: Path | None = Option(None, metavar="FILE", help="Write it: .json, or .html for a page with the plot."),
) -> Answer:
    """Say where the choice of rule matters and where recovery ends, from unlabeled images alone.

    cts: the paper's score on single layers, in one diagnosis. agreement: prune, repair and compare with the dense
    network on held-out images at each sparsity; dearer, and about the joint network.

    Example: repairability detect digits --data digits --method agreement
    """
    from repairability.calibration import HELD_OUT
    from repairability.detect import METHODS
    from repairability.transition import consensus

    if out and out.suffix == ".html":
        check_folder(out.parent, out.name)
    else:
        check_file(out)
    draws = options.draws(seed, seeds)
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    settings: dict[str, Any] = {"method": method, "null": null, **vars(cts)}
    settings["sparsities"] = options.sparsities_of(sparsities, "--sparsities") if sparsities else None
    settings["config"] = rp.PruneConfig(
        grid=grid, count=count, options=options.rule_options(option), **choice.settings()
    )
    model = network.build(seed, machine.ready())
    data, held_out = source.read(), HELD_OUT if method == "agreement" else 0
    transitions = [
        rp.find_transition(model, options.calibration_images(data, count, draw, held_out), **settings) for draw in draws
    ]
    result: dict[str, Any] = {"model": network.model, "data": data.name}
    result["draws"] = [transition.to_dict() for transition in transitions]
    sweeps, line = {transition.sparsities for transition in transitions}, []
    if len(sweeps) == 1:  # refined sweeps may differ from draw to draw; then points cannot be counted
        agreed = consensus([transition.core for transition in transitions], *sweeps)
        result["consensus"] = agreed.to_dict()
        line = [str(agreed)] if seeds > 1 else []
    if out and out.suffix == ".html":
        from repairability.report import ReportData, write_report

        title = f"Transition of {network.model}"
        write_report(ReportData(title, network.model, data.name, transition=transitions[0].for_report()), out)
    elif out:
        write_json(out, result)
    return Answer(result, [*(transition.table() for transition in transitions), *line])
