"""Verbs that look at images: diagnose, prune, evaluate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from repairability._files import write_atomically
from repairability.allocation import check_sparsity, target_count
from repairability.calibration import HELD_OUT
from repairability.cli.options import (
    AsJson,
    Count,
    DataName,
    Device,
    ImageSize,
    ModelName,
    NumClasses,
    Only,
    Root,
    Seed,
    Skip,
    Threads,
    Types,
    WeightsFile,
    check_classes,
    draw,
    layer_choice,
    layers_of,
    network,
    print_json,
    print_line,
    print_table,
    read_data,
    read_diagnosis,
    sparsities,
    use_threads,
)
from repairability.curves import MEASURES
from repairability.diagnostics import GRID, OBSERVE, diagnose
from repairability.evaluation import agreement, evaluate
from repairability.pruning import AUTO, PruneConfig, load, prune, prune_best
from repairability.pruning.choose import SECONDS as BUDGET
from repairability.repairs import REPAIRS, get_repair, recalibrated
from repairability.rules import RULES, get_rule
from repairability.scores import SCORES, get_score
from repairability.tables import Table, percent

Repair = Annotated[str, typer.Option("--repair", help=f"{', '.join(REPAIRS)}, or a chain such as cr+bn.")]
WhichGo = Annotated[str, typer.Option("--score", help=f"Which weights go: {', '.join(SCORES)}.")]
Observe = Annotated[str, typer.Option("--observe", help=f"Where damage is measured: {', '.join(OBSERVE)}.")]
Limit = Annotated[int | None, typer.Option("--limit", help="Only the first so many test images.")]
GRID_TEXT = ",".join(f"{s:g}" for s in GRID)


def diagnose_verb(
    model: ModelName,
    data: DataName,
    weights: WeightsFile = None,
    num_classes: NumClasses = None,
    grid: Annotated[str, typer.Option("--grid", help="Sparsities to measure, with commas between.")] = GRID_TEXT,
    score: WhichGo = "magnitude",
    repair: Repair = "cr+bn",
    observe: Observe = "layer",
    count: Count = 128,
    seed: Seed = 0,
    types: Types = "conv",
    skip: Skip = None,
    only: Only = None,
    root: Root = Path("data"),
    image_size: ImageSize = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it: .json or .csv.")] = None,
) -> None:
    """Measure, layer by layer, the damage of pruning and how much of it a repair leaves.

    One forward pass over unlabeled training images. The file that --out writes feeds allocate, prune and report. With
    --repair reconstruct what is left after refitting the weights that --score would keep.
    Example: repairability diagnose digits --data digits --out diagnosis.json
    """
    use_threads(threads)
    get_repair(repair)
    get_score(score)
    points = sparsities(grid, "--grid")
    net = network(model, weights, num_classes, seed, device)
    images = draw(read_data(data, root, image_size), count, seed)
    layers = layers_of(net, types, skip, only)
    found = diagnose(net, images, grid=points, repair=repair, observe=observe, layers=layers, score=score)
    if out is not None:
        write_atomically(out, found.to_csv() if out.suffix == ".csv" else found.to_json())
    if as_json:
        print_json(found.to_dict())
    else:
        print_table(found.table())


def prune_verb(
    model: ModelName,
    data: DataName,
    sparsity: Annotated[
        float, typer.Option("--sparsity", "-s", help="Target over the prunable weights: 0.95 is 95 %.")
    ],
    weights: WeightsFile = None,
    num_classes: NumClasses = None,
    rule: Annotated[
        str, typer.Option("--rule", "-r", help=f"How many weights each layer loses: {', '.join(RULES)}, or auto.")
    ] = "rr",
    score: WhichGo = "magnitude",
    repair: Repair = "cr+bn",
    best: Annotated[
        bool,
        typer.Option("--best", help="The strongest result without labels: chooses rule, score and repair by itself."),
    ] = False,
    budget: Annotated[
        float, typer.Option("--budget", metavar="SECONDS", help="With --best: begin nothing new after so long.")
    ] = BUDGET,
    curves: Annotated[
        Path | None,
        typer.Option("--curves", metavar="FILE", help="A diagnosis (JSON): then nothing is measured again."),
    ] = None,
    solver: Annotated[
        str, typer.Option("--solver", help="greedy (the paper's) or exact, for the rules on curves.")
    ] = "greedy",
    observe: Observe = "layer",
    conditioned_on: Annotated[
        str | None,
        typer.Option("--conditioned-on", help="The repair that rr reckons with. Default: the one that is applied."),
    ] = None,
    count: Count = 128,
    seed: Seed = 0,
    types: Types = "conv",
    skip: Skip = None,
    only: Only = None,
    root: Root = Path("data"),
    image_size: ImageSize = None,
    device: Device = "cpu",
    threads: Threads = None,
    evaluate_on: Annotated[
        int, typer.Option("--evaluate", metavar="N", help="Compare with the dense network on N labeled test images.")
    ] = 0,
    as_json: AsJson = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; measure and write nothing.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write the pruned model (safetensors).")
    ] = None,
) -> None:
    """Prune MODEL to a sparsity and repair it with unlabeled training images; write the result as a checkpoint.

    --rule auto tries several rules and keeps the network nearest to the dense one (mean KL) on unlabeled images held
    out for that; --best tries the strongest combinations of rule, score and repair, and says what it tried.
    Example: repairability prune resnet20 --weights resnet20.th --data npz:cifar10.npz -s 0.8 --out pruned.safetensors
    """
    use_threads(threads)
    check_sparsity(sparsity)
    if rule != AUTO:
        get_rule(rule)
    get_score(score)
    get_repair(repair)
    measured = read_diagnosis(curves)
    net = network(model, weights, num_classes, seed, device)
    layers = layers_of(net, types, skip, only)
    if dry_run:
        goes = target_count(layers.totals.values(), sparsity)
        source = "measured now, in one pass" if measured is None else str(curves)
        rows = [
            ("layers", f"{len(layers)}, {layers.total:,} prunable weights of {layers.n_all:,}"),
            ("weights that go", f"{goes:,} ({percent(sparsity)})"),
            ("rule", f"{rule} (curves: {source})" if rule in MEASURES else rule),
            ("score", score),
            ("repair", repair),
            ("images", f"{count} for the statistics and up to 2,560 for BatchNorm from {data}, seed {seed}, unlabeled"),
            ("writes", str(out) if out else "nothing (no --out)"),
        ]
        print_table(Table(("dry run", model), rows))
        return
    source_data = read_data(data, root, image_size)
    if evaluate_on:
        check_classes(net, source_data, model)
    options = {"solver": solver} if rule in MEASURES else {}
    config = PruneConfig(
        observe=observe, conditioned_on=conditioned_on, options=options, count=count, **layer_choice(types, skip, only)
    )
    images = draw(source_data, count, seed, HELD_OUT if best or rule == AUTO else 0)
    if best:
        result = prune_best(net, images, sparsity=sparsity, seconds=budget, config=config)
    else:
        result = prune(
            net, images, sparsity=sparsity, rule=rule, score=score, repair=repair, curves=measured, config=config
        )
    scores: dict[str, Any] = {}
    if evaluate_on:
        for name, each in (("dense", net), ("pruned", result.model)):
            scores[name] = evaluate(each, source_data.test.batches(limit=evaluate_on)).to_dict()
    if out is not None:
        result.save(out)
    if as_json:
        print_json({**result.to_dict(), **({"evaluation": scores} if scores else {}), "out": str(out) if out else None})
        return
    if result.trials:
        print_table(result.trials_table())
        print_line("")
    print_table(result.table())
    for name, found in scores.items():
        print_line(
            f"{name}: top-1 {percent(found['top1'])} ± {percent(found['standard_error'])} on {found['n']:,} images"
        )
    if out is not None:
        print_line(f"wrote {out}")


def evaluate_verb(
    model: ModelName,
    data: DataName,
    weights: WeightsFile = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", metavar="FILE", help="A pruned model that the verb prune wrote.")
    ] = None,
    num_classes: NumClasses = None,
    limit: Limit = None,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="First recalibrate BatchNorm on unlabeled training images.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option("--agreement", help="With --checkpoint: also compare its predictions with --weights' network."),
    ] = False,
    seed: Seed = 0,
    root: Root = Path("data"),
    image_size: ImageSize = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the figures as JSON.")] = None,
) -> None:
    """Test accuracy of MODEL, or of a pruned checkpoint of it.

    Example: repairability evaluate resnet20 --checkpoint pruned.safetensors --data npz:cifar10.npz
    """
    use_threads(threads)
    dense = network(model, weights, num_classes, seed, device)
    tested = dense if checkpoint is None else load(checkpoint, dense).model
    source = read_data(data, root, image_size)
    check_classes(tested, source, model)
    if recalibrate:
        images = draw(source, min(128, len(source.train)), seed)
        tested = recalibrated(tested, images)
    metrics = evaluate(tested, source.test.batches(limit=limit))
    found = {"model": model, "data": source.name, **metrics.to_dict()}
    tables = [metrics.table()]
    if compare:
        similar = agreement(dense, tested, source.test.batches(limit=limit))
        found["agreement"] = similar.to_dict()
        tables.append(similar.table())
    if out is not None:
        write_atomically(out, json.dumps(found, indent=2))
    if as_json:
        print_json(found)
    else:
        for table in tables:
            print_table(table)
