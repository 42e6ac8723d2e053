"""The verb export: a network as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Option

import repairability as rp
from repairability._files import check_file
from repairability.cli import options
from repairability.cli.checks import check_classes
from repairability.cli.output import Answer
from repairability.errors import InputError
from repairability.tables import Table


def verb(
    network: options.Network,
    source: options.DataSource,
    checkpoint: Path | None = Option(None, metavar="FILE", help="A pruned model that prune or compress wrote."),
    out: Path = Option(..., metavar="FILE", help="The ONNX file."),
    smaller: bool = Option(False, "--compact", help="First take out channels and branches that make no difference."),
    limit: int = Option(256, help="Check on so many test images."),
    seed: int = options.SEED,
    threads: int | None = options.THREADS,
) -> Answer:
    """Write MODEL, or a pruned checkpoint of it, as ONNX: BatchNorm folded, any number of images at a time.

    The file is run by onnxruntime on test images before it gets its name: outputs as near as rounding allows, and every
    zero still there. Needs the extra onnx.

    Example: repairability export digits --checkpoint pruned.safetensors --data digits --out pruned.onnx
    """
    import torch

    from repairability.models.weights import state_bytes

    check_file(out)
    if limit < 1:
        raise InputError(f"--limit must be at least 1, not {limit}")
    options.use_threads(threads)
    model = network.build(seed, layers_only=checkpoint is not None)
    if checkpoint:
        model = rp.load(checkpoint, model).model
    check_file(out, 0 if smaller else state_bytes(model))
    data = source.read()
    if data.test.labeled:
        check_classes(model, data, network.model)
    images = torch.cat([*data.test.image_batches(limit=limit)])
    figures: dict[str, Any] = {"model": network.model, "data": data.name}
    tables: list[Table] = []
    if smaller:
        compacted = rp.compact(model, images[:8], fold_norms=True)
        model = compacted.model
        figures["compact"] = compacted.to_dict()
        tables.append(compacted.table())
    written = rp.export_onnx(model, images[:2], out, check=images)
    return Answer({**figures, **written.to_dict()}, [*tables, written.table(), f"wrote {out}"])
