"""The verb diagnose."""

from __future__ import annotations

from pathlib import Path

from typer import Option

import repairability as rp
from repairability._files import check_file, write_atomically
from repairability.cli import options
from repairability.cli.output import Answer

GRID = "0.7,0.8,0.85,0.9,0.925,0.95,0.975"


def verb(
    network: options.Network,
    source: options.DataSource,
    choice: options.LayerChoice,
    machine: options.Machine,
    grid: str = Option(GRID, help="Sparsities to measure, with commas between."),
    score: str = options.SCORE,
    repair: str = options.REPAIR,
    observe: str = options.OBSERVE,
    output: bool = Option(
        False,
        "--output",
        help="Also measure the damage where the network ends, for the rule output: small batches run through it with "
        "one layer pruned and mended. About one pass of the samples more.",
    ),
    count: int = options.COUNT,
    seed: int = options.SEED,
    out: Path | None = Option(None, metavar="FILE", help="Write it: as CSV where the name ends in .csv, else as JSON."),
) -> Answer:
    """Measure, layer by layer, the damage of pruning and how much of it a repair leaves.

    One forward pass over unlabeled training images. The file that --out writes feeds allocate, prune and report. With
    --repair reconstruct what is left after refitting the weights that --score would keep. raw, residual and rr are seen
    at the layer itself, where one layer's damage does not compare with another's; --output is seen where all end.

    Example: repairability diagnose digits --data digits --out diagnosis.json

    Example: repairability diagnose digits --data digits --repair rectified --score alternating --output
    """
    from repairability.curves import MEASURES, OUTPUT
    from repairability.repairs import get_repair
    from repairability.scores import get_score

    check_file(out)
    get_repair(repair)
    get_score(score)
    points = options.sparsities_of(grid, "--grid")
    model = network.build(seed, machine.ready())
    images = options.calibration_images(source.read(), count, seed)
    layers = choice.of(model, next(images.batches(model)))  # as prune, which sees the network run
    measures = (*MEASURES, OUTPUT) if output else MEASURES
    diagnosis = rp.diagnose(
        model, images, grid=points, repair=repair, observe=observe, layers=layers, score=score, measures=measures
    )
    if out:
        write_atomically(out, diagnosis.to_csv() if options.is_csv(out) else diagnosis.to_json())
    return Answer(diagnosis.to_dict(), [diagnosis.table()])
