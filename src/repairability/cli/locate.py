"""The verb detect: where recovery will collapse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from repairability._files import write_atomically
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, HELD_OUT, CalibrationSet
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
    layer_choice,
    network,
    notices,
    print_json,
    print_line,
    print_table,
    read_data,
    sparsities,
    use_threads,
)
from repairability.detect import METHODS, find_transition
from repairability.errors import InputError, unknown
from repairability.pruning import PruneConfig
from repairability.report import ReportData, write_report
from repairability.transition import Interval, consensus


def detect_verb(
    model: ModelName,
    data: DataName,
    weights: WeightsFile = None,
    num_classes: NumClasses = None,
    method: Annotated[str, typer.Option("--method", help=f"{' or '.join(METHODS)}; see below.")] = "cts",
    sweep: Annotated[
        str, typer.Option("--sparsities", help="The sweep, with commas between. Default: the method's.")
    ] = "",
    reference: Annotated[str, typer.Option("--reference", help="For cts: the rule that rr is compared with.")] = "erk",
    low: Annotated[float, typer.Option("--low", help="For cts: the anchor without stress.")] = 0.90,
    high: Annotated[float, typer.Option("--high", help="For cts: the anchor of full stress.")] = 0.975,
    strict: Annotated[
        bool, typer.Option("--strict/--interpolate", help="For cts: measure rr at each allocation's own sparsities.")
    ] = True,
    null: Annotated[
        bool, typer.Option("--null/--no-null", help="Also run the detector without the information it claims to use.")
    ] = True,
    seeds: Annotated[int, typer.Option("--seeds", help="How many draws of calibration images.")] = 1,
    seed: Seed = 0,
    count: Count = 128,
    types: Types = "conv",
    skip: Skip = None,
    only: Only = None,
    root: Root = Path("data"),
    image_size: ImageSize = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it: .json, or .html for a page with the plot.")
    ] = None,
) -> None:
    """Say where the choice of rule matters and where recovery ends, from unlabeled images alone.

    cts: the paper's score on single layers, in one pass. agreement: prune, repair and compare with the dense network on
    held-out images at each sparsity; dearer, and about the joint network.
    Example: repairability detect digits --data digits --method agreement
    """
    use_threads(threads)
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, not {seeds}")
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    points = sparsities(sweep, "--sparsities") if sweep else None
    net = network(model, weights, num_classes, seed, device)
    source = read_data(data, root, image_size)
    config = PruneConfig(count=count, **layer_choice(types, skip, only))
    wanted = min(len(source.train), count + BN_BATCHES * BN_BATCH_SIZE + (HELD_OUT if method == "agreement" else 0))
    found = []
    for draw in range(seed, seed + seeds):
        with notices.status("drawing calibration images"):
            images = CalibrationSet(source.unlabeled(wanted, draw), count=count)
        found.append(
            find_transition(
                net,
                images,
                sparsities=points,
                low=low,
                high=high,
                reference=reference,
                method=method,
                strict=strict,
                null=null,
                config=config,
            )
        )
    result: dict[str, Any] = {"model": model, "data": source.name, "draws": [each.to_dict() for each in found]}
    agreed = consensus([each.core for each in found], found[0].sparsities) if _one_sweep(found) else None
    if agreed is not None:
        result["consensus"] = {
            "stable": agreed.stable,
            "majority": agreed.majority,
            "votes": {f"{s:g}": votes for s, votes in agreed.votes.items()},
        }
    if out is not None and out.suffix == ".html":
        write_report(ReportData(f"Transition of {model}", model, source.name, transition=found[0].for_report()), out)
    elif out is not None:
        write_atomically(out, json.dumps(result, indent=2))
    if as_json:
        print_json(result)
        return
    for each in found:
        print_table(each.table())
    if agreed is not None and seeds > 1:
        votes = ", ".join(f"{100 * s:g} %: {n}" for s, n in agreed.votes.items() if n)
        print_line(f"over {seeds} draws: stable core {_words(agreed.stable)}, majority core {_words(agreed.majority)}")
        print_line(f"draws with a point in the core: {votes or 'none'}")


def _one_sweep(found: list[Any]) -> bool:
    """Refined sweeps may differ from draw to draw; then points cannot be counted."""
    return len({each.sparsities for each in found}) == 1


def _words(interval: Interval | None) -> str:
    return "none" if interval is None else f"{100 * interval[0]:g} to {100 * interval[1]:g} %"
