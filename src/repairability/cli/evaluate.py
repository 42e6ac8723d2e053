"""The verb evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Option

import repairability as rp
from repairability._files import check_file
from repairability.cli import options
from repairability.cli.checks import check_classes
from repairability.cli.output import Answer, write_json
from repairability.errors import InputError
from repairability.tables import percent


def verb(
    network: options.Network,
    source: options.DataSource,
    machine: options.Machine,
    checkpoint: Path | None = Option(None, metavar="FILE", help="A pruned model that the verb prune wrote."),
    limit: int | None = Option(None, help="Only the first so many test images."),
    recalibrate: bool = Option(False, "--recalibrate", help="First recalibrate BatchNorm on unlabeled images."),
    compare: bool = Option(
        False, "--agreement", help="With --checkpoint: also compare its predictions with --weights' network."
    ),
    seed: int = options.SEED,
    out: Path | None = Option(None, metavar="FILE", help="Write the figures as JSON."),
) -> Answer:
    """Test accuracy of MODEL, or of a pruned checkpoint of it.

    Example: repairability evaluate digits --weights trained --data digits
    """
    check_file(out)
    if compare and checkpoint is None and not recalibrate:
        raise InputError(
            "--agreement compares a pruned checkpoint with --weights' network: give one, --checkpoint FILE"
        )
    dense = network.build(seed, machine.ready())
    pruned = rp.load(checkpoint, dense) if checkpoint else None
    tested = dense if pruned is None else pruned.model
    data = source.read()
    if data.test.labeled:
        check_classes(tested, data, network.model)
    elif not compare:
        data.check_labels("accuracy")  # --agreement does without
    if recalibrate:
        from repairability.repairs import recalibrated

        tested = recalibrated(tested, options.calibration_images(data, min(128, len(data.train)), seed))
    figures: dict[str, Any] = {"model": network.model, "data": data.name}
    tables, lines = [], []
    if data.test.labeled:
        metrics = rp.evaluate(tested, data.test.batches(limit=limit))
        figures |= metrics.to_dict()
        tables.append(metrics.table())
    if pruned is not None:
        figures["checkpoint"] = {**pruned.way(), "sparsity": pruned.allocation.sparsity}
        words = ", ".join(f"{part} {name}" for part, name in pruned.way().items())
        lines.append(f"pruned to {percent(pruned.allocation.sparsity)}: {words}")
    if compare:
        agreement = rp.agreement(dense, tested, data.test.image_batches(limit=limit))
        figures["agreement"] = agreement.to_dict()
        tables.append(agreement.table())
    if out:
        write_json(out, figures)
    return Answer(figures, [*tables, *lines])
