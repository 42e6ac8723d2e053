"""The verb info: what a file of a pruned model holds."""

from __future__ import annotations

from pathlib import Path

from typer import Argument

from repairability.cli.output import Answer


def verb(file: Path = Argument(metavar="FILE", help="A pruned model that prune or compress wrote.")) -> Answer:
    """Sparsity and bytes of FILE, tensor by tensor, beside the bytes with all zeros and the entropy bound.

    The bound is what any choice of so many weights takes: n H(p) bits where the share p of n weights stays, and the
    bytes of their values. The file is checked as when it is loaded; the model itself is not needed.

    Example: repairability info pruned.safetensors
    """
    from repairability.checkpoints import read_content

    info = read_content(file).info
    return Answer(info.to_dict(), [info.table()])
