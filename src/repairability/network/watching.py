"""Watching a pass: wherever it multiplies by a layer's weight, whichever module or function does it.

A layer is known by its weight's memory, not by its module's class, so a convolution that pads first, a functional use
of a weight and a packed projection are all seen, with the geometry of the very call. Nothing is attached to the model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from repairability._torch import batch_norms
from repairability.network.calls import Call, Handler
from repairability.network.kinds import KINDS
from repairability.network.layers import Layer
from repairability.network.readers import READERS, both_tensors, times
from repairability.network.unfold import Geometry

ADDITIONS = ("add", "add_", "__add__", "__iadd__", "__radd__")
"""The spellings of a sum of two tensors."""


class Watching(TorchFunctionMode):
    """While it is entered, `handle` is called in place of every product with one of the layers' weights.

    `norm(name, input, output)` is told of each BatchNorm, `added(number, operands)` of each sum of two tensors before
    it is computed, `used(function, args, kwargs, result)` of whatever is done, afterwards. `samples`: of the batch that
    runs.
    """

    def __init__(
        self,
        network: nn.Module,
        layers: Collection[Layer],
        handle: Handler,
        *,
        samples: int | None = None,
        norm: Callable[[str, Tensor, Tensor], None] | None = None,
        added: Callable[[int, tuple[Tensor, Tensor]], None] | None = None,
        used: Callable[[str, tuple[Any, ...], dict[str, Any], Any], None] | None = None,
    ) -> None:
        super().__init__()
        self.handle, self.samples, self.norm, self.added, self.used = handle, samples, norm, added, used
        self.layers: dict[int, list[Layer]] = {}
        for layer in layers:
            self.layers.setdefault(layer.weight.data_ptr(), []).append(layer)
        self.batches = {x.weight.data_ptr() - x.part * x.weight.nbytes for x in layers if isinstance(x.part, int)}
        self.norms = {} if norm is None else _norms(network)
        self.additions = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        reader = READERS.get(name)
        if reader is not None:
            result = reader(self, func, args, kwargs)
        else:
            if self.added is not None and name in ADDITIONS and both_tensors(args):
                self.added(self.additions, (args[0], args[1]))
                self.additions += 1
            result = func(*args, **kwargs)
        if self.used is not None:
            self.used(name, args, kwargs, result)
        return result

    def layer_of(self, operand: Any, *, by_rows: bool) -> Layer | None:
        """The layer whose weight this operand is, as it stands or transposed. `by_rows`: the product takes a row of it
        for each output, else a column.
        """
        if not isinstance(operand, Tensor) or operand.layout != torch.strided:
            return None
        for layer in self.layers.get(operand.data_ptr(), ()):
            weight, kind = layer.weight, KINDS[layer.kind]
            straight = operand.shape == weight.shape and operand.stride() == weight.stride()
            if straight and (kind.axes or kind.transposed != by_rows):
                return layer
            turned = operand.dim() == 2 == weight.dim() and operand.stride() == weight.stride()[::-1]
            if turned and operand.shape == weight.shape[::-1] and kind.transposed == by_rows:
                return layer
        return None

    def multiplied(
        self, layer: Layer | None, x: Tensor, bias: Tensor | None, product: Callable[[Tensor], Tensor], **more: Any
    ) -> Tensor:
        """A product without a kernel, watched where it is a layer's."""
        if layer is None:
            return product(x)
        if "sample_axis" not in more and x.dim() == 3 and self.samples not in (None, len(x)):
            more["sample_axis"] = 1 if x.shape[1] == self.samples else 0  # [T, N, C]
        return self.handle(Call(layer, x, bias, Geometry(), product, **more))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, **more: Any) -> Tensor:
        layer = self.layer_of(weight, by_rows=True)
        return self.multiplied(layer, x, bias, lambda x: F.linear(x, weight, bias), **more)

    def of_batch(self, x: Tensor, weights: Tensor) -> Tensor | None:
        """A batch of matrices, each a layer of its own; None where they are nobody's."""
        if weights.dim() != 3 or weights.data_ptr() not in self.batches:
            return None
        products = []
        for i, one in enumerate(weights):
            layer = self.layer_of(one, by_rows=False)
            # [..., E, T, C], or [..., 1, T, C] and [T, C], which all matrices share
            own = x if x.dim() < 3 else x.select(-3, i if x.shape[-3] > 1 else 0)
            products.append(self.multiplied(layer, own, None, functools.partial(times, weight=one)))
        return torch.stack(products, dim=-3)


def _norms(network: nn.Module) -> dict[int, str]:
    named = batch_norms(network).items()
    return {norm.running_mean.data_ptr(): name for name, norm in named if norm.running_mean is not None}
