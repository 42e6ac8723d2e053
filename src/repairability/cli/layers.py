"""The verb layers."""

from __future__ import annotations

from repairability.cli.options import LayerChoice, Network
from repairability.cli.output import Answer


def verb(network: Network, choice: LayerChoice) -> Answer:
    """List the layers of MODEL that may be pruned.

    The first convolution and the last linear layer stay dense unless --skip says otherwise (--skip '' skips nothing).
    `repairability doctor` also says why other parameters are not pruned.

    Example: repairability layers resnet18
    """
    layers = choice.of(network.build(layers_only=True))
    shown = ("name", "kind", "shape", "total", "projection")
    rows = [{name: getattr(layer, name) for name in shown} for layer in layers]
    counts = {"prunable": layers.total, "n_all": layers.n_all, "parameters": layers.parameters}
    about = {**counts, "coverage": layers.coverage, "left_out": layers.left_out, "layers": rows}
    return Answer(about, [layers.table()])
