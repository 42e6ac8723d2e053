"""The verb compress: a file of a pruned model in another format."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from repairability._files import check_file
from repairability.cli import options
from repairability.cli.output import Answer
from repairability.tables import Table, percent


def verb(
    file: Path = Argument(metavar="FILE", help="A pruned model that prune or compress wrote."),
    out: Path = Option(..., metavar="FILE", help="Where to write it (safetensors)."),
    format: str = Option("sparse", metavar="FORMAT", help=f"{options.FILE_FORMATS}. Default: sparse."),
    values: str = options.VALUE_TYPE,
) -> Answer:
    """Write the pruned model in FILE without its zeros: near the entropy of which weights stay, and their values.

    load and the other verbs take either format. float32 values are exact; float16 and int8 (a scale for each filter)
    round the weights, and the largest error is told. --format dense brings back a plain safetensors file.

    Example: repairability compress pruned.safetensors --out small.safetensors

    Example: repairability compress pruned.safetensors --out smaller.safetensors --values int8
    """
    from repairability.checkpoints import DENSE, check_format, read_content, write_content

    check_file(out)
    check_format(format, values)
    content = read_content(file)
    before = content.info
    check_file(out, before.dense_bytes if format == DENSE else 0)
    after = write_content(out, content.header, content.tensors(), format=format, values=values)
    rows = [(x.path, x.format, x.values, f"{x.size:,}", f"{x.bound:,.0f}", percent(x.above)) for x in (before, after)]
    words = f"{before.size / after.size:.2f} times smaller" if after.size < before.size else "not smaller"
    if after.rounding:
        words += f"; {after.rounding}"
    columns = ("file", "format", "values", "bytes", "entropy bound", "above it")
    figures = {"before": before.figures(), "after": after.figures(), "ratio": before.size / after.size}
    return Answer(figures, [Table(columns, rows, caption=words), f"wrote {out}"])
