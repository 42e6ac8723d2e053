"""Verbs that need no data: layers, allocate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from repairability._files import write_atomically
from repairability.allocation import Allocation, check_sparsity
from repairability.cli.options import (
    AsJson,
    CsvFile,
    ModelName,
    NumClasses,
    Only,
    Seed,
    Skip,
    Types,
    WeightsFile,
    layers_of,
    network,
    print_json,
    print_table,
    read_diagnosis,
)
from repairability.curves import MEASURES
from repairability.errors import InputError
from repairability.rules import RULES, allocate, get_rule
from repairability.tables import Table, csv_text


def layers_verb(
    model: ModelName,
    weights: WeightsFile = None,
    num_classes: NumClasses = None,
    types: Types = "conv",
    skip: Skip = None,
    only: Only = None,
    as_json: AsJson = False,
) -> None:
    """List the layers of MODEL that may be pruned.

    The first convolution stays dense unless --skip says otherwise (--skip '' skips nothing).
    Example: repairability layers resnet18
    """
    layers = layers_of(network(model, weights, num_classes, layers_only=True), types, skip, only)
    if as_json:
        rows = [
            {"name": x.name, "kind": x.kind, "shape": x.shape, "total": x.total, "projection": x.projection}
            for x in layers
        ]
        print_json({"prunable": layers.total, "n_all": layers.n_all, "layers": rows})
    else:
        print_table(layers.table())


def allocate_verb(
    model: ModelName,
    sparsity: Annotated[
        float, typer.Option("--sparsity", "-s", help="Target over the prunable weights: 0.95 is 95 %.")
    ],
    rule: Annotated[str, typer.Option("--rule", "-r", help=f"One of {', '.join(RULES)}.")] = "erk",
    compare: Annotated[
        str, typer.Option("--compare", metavar="RULES", help="Several rules side by side: erk,lamp,uniform.")
    ] = "",
    curves: Annotated[
        Path | None,
        typer.Option(
            "--curves",
            metavar="FILE",
            help="A diagnosis (JSON, from the verb diagnose), for raw, residual and rr.",
        ),
    ] = None,
    solver: Annotated[
        str, typer.Option("--solver", help="greedy (the paper's) or exact, for the rules on curves.")
    ] = "greedy",
    over: Annotated[
        str, typer.Option("--over", help="For --rule global: the target counts over all weights, or prunable ones.")
    ] = "all",
    pin: Annotated[
        list[str] | None,
        typer.Option("--pin", metavar="GLOB=SPARSITY", help="For --rule forced: fix these layers (repeatable)."),
    ] = None,
    rest: Annotated[str, typer.Option("--rest", help="For --rule forced: the rule of the other layers.")] = "erk",
    weights: WeightsFile = None,
    num_classes: NumClasses = None,
    seed: Seed = 0,
    types: Types = "conv",
    skip: Skip = None,
    only: Only = None,
    as_json: AsJson = False,
    csv_file: CsvFile = None,
) -> None:
    """Distribute a sparsity among the layers of MODEL.

    Examples: repairability allocate resnet18 --rule erk --sparsity 0.95,
    repairability allocate resnet18 -s 0.95 --compare erk,lamp,uniform,
    repairability allocate resnet18 -s 0.95 --rule forced --pin '*downsample*=0.7'
    """
    check_sparsity(sparsity)
    names = [name.strip() for name in compare.split(",")] if compare else [rule]
    for name in names:
        get_rule(name)  # refuse a misspelled rule before the model is built
    measured = read_diagnosis(curves)
    options: dict[str, dict[str, Any]] = {
        "global": {"over": over},
        "forced": {"pinned": _pins(pin or []), "rest": rest, **({"solver": solver} if rest in MEASURES else {})},
        **{measure: {"solver": solver} for measure in MEASURES},
    }
    layers = layers_of(network(model, weights, num_classes, seed, layers_only=True), types, skip, only)

    plans = [allocate(layers, sparsity=sparsity, rule=x, curves=measured, **options.get(x, {})) for x in names]
    if csv_file:
        write_atomically(csv_file, csv_text([row for plan in plans for row in plan.rows()]))
    if as_json:
        print_json({"allocations": [plan.to_dict() for plan in plans]} if compare else plans[0].to_dict())
    else:
        print_table(_side_by_side(plans) if compare else plans[0].table())


def _side_by_side(plans: Sequence[Allocation]) -> Table:
    first = plans[0]
    rows = [(name, f"{first.totals[name]:,}", *(f"{plan[name]:.4f}" for plan in plans)) for name in first]
    rows.append(("over the prunable weights", "", *(f"{plan.sparsity:.4f}" for plan in plans)))
    rows.append(("over all weights", "", *(f"{plan.global_sparsity:.4f}" for plan in plans)))
    return Table(("layer", "total", *(plan.rule for plan in plans)), rows)


def _pins(pins: Sequence[str]) -> dict[str, float]:
    pinned = {}
    for pin in pins:
        pattern, _, text = pin.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            pattern = ""
        if not pattern:
            raise InputError(f"--pin takes GLOB=SPARSITY, for example '*downsample*=0.7', not {pin!r}")
        pinned[pattern] = check_sparsity(value, f"the sparsity in --pin {pin}")
    return pinned
