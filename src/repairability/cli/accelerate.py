"""The verb accelerate."""

from __future__ import annotations

from pathlib import Path

from typer import Option

import repairability as rp
from repairability._files import check_file
from repairability.cli import options
from repairability.cli.output import Answer, write_json


def verb(
    network: options.Network,
    checkpoint: Path | None = Option(None, metavar="FILE", help="A pruned model that the verb prune wrote."),
    image_size: int | None = Option(None, help="Side of the images. Default: as the network usually takes them."),
    batch: int = Option(1, help="Images at a time."),
    threads: int | None = options.THREADS,
    seed: int = options.SEED,
    out: Path | None = Option(None, metavar="FILE", help="Write the figures as JSON."),
) -> Answer:
    """How fast MODEL, or a pruned checkpoint of it, runs here: each layer dense and sparse, which is chosen, the whole.

    The outputs are checked against the plain network's. In Python: rp.accelerate(model, example). Needs the extra
    runtime.

    Example: repairability accelerate resnet18 --checkpoint pruned.safetensors --batch 16 --threads 1
    """
    import torch
    from torch import nn

    from repairability.models import usual_input

    check_file(out)
    options.use_threads(threads)
    model = network.build(seed, layers_only=checkpoint is not None)
    if checkpoint:
        model = rp.load(checkpoint, model).model
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    channels, usual = usual_input(network.model)
    side = image_size or usual
    shape = (batch, first.in_channels if first is not None else channels, side, side)
    example = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    fast = rp.accelerate(model, example, threads=threads)
    figures = {"model": network.model, "checkpoint": checkpoint, "example": shape, **fast.to_dict()}
    if out:
        write_json(out, figures)
    return Answer(figures, [fast.table(), *([f"wrote {out}"] if out else [])])
