"""Networks that cannot be read as a whole: their layers, one by one, by the kernels where those are faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from repairability.deploy.runtime.engine import Engine
from repairability.deploy.runtime.measures import LayerTime, timed
from repairability.deploy.runtime.stages import Unreadable
from repairability.progress import track


class _Substitute(nn.Module):
    """In a layer's place. Whoever reads the layer's weight finds it."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.plain = plain

    @property
    def weight(self) -> Any:
        return self.plain.weight

    @property
    def bias(self) -> Any:
        return self.plain.bias


class Replaced(_Substitute):
    """A layer by the kernels."""

    def __init__(self, plain: nn.Module, engine: Engine) -> None:
        super().__init__(plain)
        self.engine = engine

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.plain, nn.Linear) and x.dim() != 2:
            return self.engine(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)
        return self.engine(x)


class _Recorder(_Substitute):
    """Stands there for one pass and keeps what it was given."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__(plain)
        self.given: list[Tensor] = []

    def forward(self, x: Tensor) -> Any:
        self.given.append(x.detach().clone())
        return self.plain(x)


def replace_layers_(network: nn.Module, run: Callable[[], object], threads: int, kernels: str) -> list[LayerTime]:
    """In a copy of ours: each convolution and linear layer that `run` calls with one shape is timed plain (dense) and
    by the kernels, conversions included, and replaced where that is faster.
    """
    layers = {name: m for name, m in network.named_modules() if type(m) in (nn.Conv2d, nn.Linear) and name}
    recorders = {name: _Recorder(layer) for name, layer in layers.items()}
    for name, layer in layers.items():
        _exchange_(network, layer, recorders[name])
    try:
        run()
    finally:
        for name, layer in layers.items():
            _exchange_(network, recorders[name], layer)
    times = []
    for name, recorder in track(recorders.items(), "timing layers", len(recorders)):
        taken = _timed(name, layers[name], recorder.given, threads, kernels)
        if taken is not None:
            replaced, time = taken
            times.append(time)
            if time.chosen == "sparse":
                _exchange_(network, layers[name], replaced)
    return times


def _exchange_(network: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Under whatever names it lies there."""
    for parent in [module for module in network.modules() if module is not new]:
        for key, module in parent._modules.items():
            if module is old:
                parent._modules[key] = new


def _timed(
    name: str, layer: nn.Module, given: list[Tensor], threads: int, kernels: str
) -> tuple[Replaced, LayerTime] | None:
    """None for what the kernels cannot do."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    grouped = isinstance(layer, nn.Conv2d) and layer.groups > 1
    if not given or grouped or weight.dtype != torch.float32 or given[0].dtype != torch.float32:
        return None
    example = given[0].reshape(-1, given[0].shape[-1]) if isinstance(layer, nn.Linear) else given[0]
    try:
        replaced = Replaced(layer, Engine(nn.Sequential(layer), example, threads, "sparse"))
    except Unreadable:
        return None
    dense, sparse = timed([lambda: layer(given[0]), lambda: replaced(given[0])], seconds=0.02)
    faster = sparse < dense if kernels == "measured" else kernels == "sparse"
    zeros = 1 - float(torch.count_nonzero(weight)) / max(1, weight.numel())
    return replaced, LayerTime(name, zeros, 1e3 * dense, 1e3 * sparse, "sparse" if faster else "dense")
