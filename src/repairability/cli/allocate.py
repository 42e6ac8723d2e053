"""The verb allocate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from typer import Option

import repairability as rp
from repairability._files import check_file, write_atomically
from repairability.cli import options
from repairability.cli.output import Answer
from repairability.errors import InputError
from repairability.tables import Table, csv_text

DEFAULT = "erk"


def verb(
    network: options.Network,
    choice: options.LayerChoice,
    sparsity: float = options.SPARSITY,
    rule: str | None = Option(
        None,
        "--rule",
        "-r",
        help=f"One of {options.RULES}. Default: {DEFAULT}.",
        autocompletion=options.completing(options.RULES),
    ),
    compare: str = Option("", metavar="RULES", help="Several rules side by side: erk,lamp,uniform."),
    option: list[str] | None = options.RULE_OPTIONS,
    curves: Path | None = options.CURVES,
    seed: int = options.SEED,
    csv: Path | None = Option(None, metavar="FILE", help="Also write the rows as CSV."),
) -> Answer:
    """Distribute a sparsity among the layers of MODEL.

    Example: repairability allocate resnet18 --rule erk --sparsity 0.95

    Example: repairability allocate resnet18 -s 0.95 --compare erk,lamp,uniform

    Example: repairability allocate resnet18 -s 0.95 --rule forced --option 'pinned={"*downsample*": 0.7}'
    """
    from repairability.allocation import check_sparsity

    check_file(csv)
    check_sparsity(sparsity)
    if compare and rule:
        raise InputError(f"--compare names all its rules: leave --rule {rule} out, or say --compare {compare},{rule}")
    rules = [name.strip() for name in compare.split(",")] if compare else [rule or DEFAULT]
    own = options.by_rule(rules, option)  # whatever can be refused is refused before the network is built
    diagnosis = options.read_diagnosis(curves)
    model = network.build(seed, layers_only=True)
    layers = model if diagnosis is not None and choice.usual else choice.of(model)  # a diagnosis knows what comes first
    plans = [rp.allocate(layers, sparsity=sparsity, rule=name, curves=diagnosis, **own[name]) for name in rules]
    if csv:
        write_atomically(csv, csv_text([row for plan in plans for row in plan.rows()]))
    if compare:
        return Answer({"allocations": [plan.to_dict() for plan in plans]}, [_side_by_side(plans)])
    return Answer(plans[0].to_dict(), [plans[0].table()])


def _side_by_side(plans: Sequence[rp.Allocation]) -> Table:
    first = plans[0]
    rows = [(name, f"{first.totals[name]:,}", *(f"{plan[name]:.4f}" for plan in plans)) for name in first]
    rows.append(("over the prunable weights", "", *(f"{plan.sparsity:.4f}" for plan in plans)))
    rows.append(("over all weights", "", *(f"{plan.global_sparsity:.4f}" for plan in plans)))
    return Table(("layer", "total", *(plan.rule for plan in plans)), rows)
