"""The command line: one short function per verb; parses, calls public functions, prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from torch import nn

from repairability._files import read_text, write_atomically
from repairability.allocation import Allocation, check_sparsity
from repairability.curves import Curves
from repairability.errors import InputError, RepairabilityError
from repairability.layers import FIRST_CONV, Layers, prunable_layers
from repairability.models import create_model
from repairability.rules import MEASURES, RULES, allocate, get_rule
from repairability.tables import Table, csv_text

app = typer.Typer(
    name="repairability",
    help="Post-training pruning at very high sparsity: no labels, no gradients, no retraining.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
notices = Console(stderr=True)

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A torchvision name (resnet18), or package.module:callable.")
]
WeightsFile = Annotated[
    Path | None,
    typer.Option("--weights", metavar="FILE", help="State dict: safetensors, or a torch file (read weights-only)."),
]
NumClasses = Annotated[int | None, typer.Option("--num-classes", help="Classes of the model's head.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of random weights, where no weights are given.")]
Types = Annotated[
    str, typer.Option("--types", help="Layer types, comma-separated: conv (= conv2d), conv1d, conv3d, linear.")
]
Skip = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="GLOB", help=f"Layers to leave dense (repeatable). {FIRST_CONV}: the first conv."),
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="GLOB", help="Only these layers (repeatable). Default: all.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
CsvFile = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Also write the rows as CSV.")]


@app.command("layers")
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
    layers = _layers(_network(model, weights, num_classes), types, skip, only)
    if as_json:
        rows = [
            {"name": x.name, "kind": x.kind, "shape": x.shape, "total": x.total, "projection": x.projection}
            for x in layers
        ]
        _print_json({"prunable": layers.total, "n_all": layers.n_all, "layers": rows})
    else:
        _print_table(layers.table())


@app.command("allocate")
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
        typer.Option("--curves", metavar="FILE", help=f"Measured curves (JSON), for the rules {', '.join(MEASURES)}."),
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
    measured = Curves.from_json(read_text(curves)) if curves else None
    options: dict[str, dict[str, Any]] = {
        "global": {"over": over},
        "forced": {"pinned": _pins(pin or []), "rest": rest, **({"solver": solver} if rest in MEASURES else {})},
        **{measure: {"solver": solver} for measure in MEASURES},
    }
    layers = _layers(_network(model, weights, num_classes, seed), types, skip, only)

    plans = [allocate(layers, sparsity=sparsity, rule=x, curves=measured, **options.get(x, {})) for x in names]
    if csv_file:
        write_atomically(csv_file, csv_text([row for plan in plans for row in plan.rows()]))
    if as_json:
        _print_json({"allocations": [plan.to_dict() for plan in plans]} if compare else plans[0].to_dict())
    else:
        _print_table(_side_by_side(plans) if compare else plans[0].table())


def _side_by_side(plans: Sequence[Allocation]) -> Table:
    first = plans[0]
    rows = [(name, f"{first.totals[name]:,}", *(f"{plan[name]:.4f}" for plan in plans)) for name in first]
    rows.append(("over the prunable weights", "", *(f"{plan.sparsity:.4f}" for plan in plans)))
    rows.append(("over all weights", "", *(f"{plan.global_sparsity:.4f}" for plan in plans)))
    return Table(("layer", "total", *(plan.rule for plan in plans)), rows)


def _network(name: str, weights: Path | None, num_classes: int | None, seed: int = 0) -> nn.Module:
    with notices.status(f"building {name}"):  # silent unless standard error is a terminal
        return create_model(name, num_classes=num_classes, weights=weights, seed=seed)


def _layers(model: nn.Module, types: str, skip: list[str] | None, only: list[str] | None) -> Layers:
    return prunable_layers(
        model,
        types=tuple(kind.strip() for kind in types.split(",")),
        skip=(FIRST_CONV,) if skip is None else tuple(pattern for pattern in skip if pattern),
        only=tuple(only) if only else ("*",),
    )


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


def _print_table(table: Table) -> None:
    if sys.stdout.isatty():
        Console().print(table.rich())
    else:
        print(table)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors of ours end in one line on standard error and exit code 2."""
    try:
        app(args=arguments, prog_name="repairability")
    except RepairabilityError as error:
        notices.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(2) from None
