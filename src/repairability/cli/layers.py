"""The verb layers."""

from __future__ import annotations

from repairability.cli.options import AS_JSON, LayerChoice, Network
from repairability.cli.output import show


def verb(network: Network, choice: LayerChoice, as_json: bool = AS_JSON) -> None:
    """List the layers of MODEL that may be pruned.

    The first convolution stays dense unless --skip says otherwise (--skip '' skips nothing).

    Example: repairability layers resnet18
    """
    layers = choice.of(network.build(layers_only=True))
    shown = ("name", "kind", "shape", "total", "projection")
    rows = [{name: getattr(layer, name) for name in shown} for layer in layers]
    show(as_json, {"prunable": layers.total, "n_all": layers.n_all, "layers": rows}, layers.table())
