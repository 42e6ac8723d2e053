"""The verb allocate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Option

import repairability as rp
from repairability._files import write_atomically
from repairability.cli import options
from repairability.cli.output import show

if TYPE_CHECKING:
    from repairability.tables import Table


def verb(
    network: options.Network,
    choice: options.LayerChoice,
    sparsity: float = options.SPARSITY,
    rule: str = Option("erk", "--rule", "-r", help=f"One of {options.RULES}."),
    compare: str = Option("", metavar="RULES", help="Several rules side by side: erk,lamp,uniform."),
    option: list[str] = options.RULE_OPTIONS,
    curves: Path = options.CURVES,
    seed: int = options.SEED,
    as_json: bool = options.AS_JSON,
    csv: Path = Option(None, metavar="FILE", help="Also write the rows as CSV."),
) -> None:
    """Distribute a sparsity among the layers of MODEL.

    Example: repairability allocate resnet18 --rule erk --sparsity 0.95

    Example: repairability allocate resnet18 -s 0.95 --compare erk,lamp,uniform

    Example: repairability allocate resnet18 -s 0.95 --rule forced --option 'pinned={"*downsample*": 0.7}'
    """
    from repairability.allocation import check_sparsity
    from repairability.tables import csv_text

    check_sparsity(sparsity)
    rules = [name.strip() for name in compare.split(",")] if compare else [rule]
    own = _options_of_each(rules, options.rule_options(option))
    diagnosis = options.read_diagnosis(curves)
    layers = choice.of(network.build(seed, layers_only=True))

    plans = [rp.allocate(layers, sparsity=sparsity, rule=name, curves=diagnosis, **own[name]) for name in rules]
    if csv:
        write_atomically(csv, csv_text([row for plan in plans for row in plan.rows()]))
    if compare:
        show(as_json, {"allocations": [plan.to_dict() for plan in plans]}, _side_by_side(plans))
    else:
        show(as_json, plans[0].to_dict(), plans[0].table())


def _options_of_each(rules: Sequence[str], given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """In a comparison an option goes to the rules that take it; one that none takes is left to fail by name. A rule
    nobody knows is refused here, before the network is built.
    """
    from repairability.rules import options_of

    taken = {rule: options_of(rule) for rule in rules}
    anywhere = {name for names in taken.values() for name in names}
    return {
        rule: {name: value for name, value in given.items() if name in names or name not in anywhere}
        for rule, names in taken.items()
    }


def _side_by_side(plans: Sequence[rp.Allocation]) -> Table:
    from repairability.tables import Table

    first = plans[0]
    rows = [(name, f"{first.totals[name]:,}", *(f"{plan[name]:.4f}" for plan in plans)) for name in first]
    rows.append(("over the prunable weights", "", *(f"{plan.sparsity:.4f}" for plan in plans)))
    rows.append(("over all weights", "", *(f"{plan.global_sparsity:.4f}" for plan in plans)))
    return Table(("layer", "total", *(plan.rule for plan in plans)), rows)
