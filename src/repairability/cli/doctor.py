"""The verb doctor."""

from __future__ import annotations

from pathlib import Path

from typer import Option

import repairability as rp
from repairability._files import check_file
from repairability.cli import options
from repairability.cli.output import Answer, write_json


def verb(
    network: options.Network,
    choice: options.LayerChoice,
    machine: options.Machine,
    data: str | None = Option(
        None, metavar="DATA", help="As for prune; without it, noise of the usual size goes through the network."
    ),
    root: Path = options.ROOT,
    image_size: int | None = Option(None, help="Side of the images."),
    samples: int = Option(16, help="How many samples go through the network."),
    seed: int = options.SEED,
    out: Path | None = Option(None, metavar="FILE", help="Write it as JSON."),
) -> Answer:
    """What can be pruned in MODEL, what cannot and why, and what each recipe would do there and cost.

    The first thing to run on a strange model: every parameter with its share, whether it is pruned or why not, how
    often it is used, the BatchNorm behind it.

    Example: repairability doctor resnet18

    Example: repairability doctor digits --weights trained --data digits
    """
    import torch

    from repairability.models import usual_input

    check_file(out)
    model = network.build(seed, machine.ready(), layers_only=True)
    if data is None:
        channels, usual = usual_input(network.model)
        side = image_size or usual
        batch = torch.randn(samples, channels, side, side, generator=torch.Generator().manual_seed(seed))
    else:
        batch = options.DataSource(data, root, image_size).read().unlabeled(samples, seed)
    checkup = rp.doctor(model, batch, **choice.settings())
    if out:
        write_json(out, checkup.to_dict())
    return Answer(checkup.to_dict(), [checkup.table(), checkup.recipes_table()])
