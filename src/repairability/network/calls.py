"""Call: one product of a forward pass with a layer's weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from repairability.network.layers import Layer
from repairability.network.unfold import Geometry


@dataclass(frozen=True, eq=False)
class Call:
    """One product of a layer: its input x as given, its bias, its geometry, and the product as a function of x, which
    takes the weights as they are by then.
    """

    layer: Layer
    x: Tensor
    bias: Tensor | None
    geometry: Geometry
    product: Callable[[Tensor], Tensor]
    samples: int | None = None  # where the rows of all samples stand below each other, how many samples there are
    sample_axis: int = 0

    def compute(self) -> Tensor:
        return self.product(self.x)

    def kept(self) -> Call:
        """The same product for later: what the pass writes into its input in place does not reach it."""
        return replace(self, x=self.x.clone())

    def inputs(self) -> Tensor:
        """The input as [N, C_in, *spatial], of a Linear [N, C_in, positions]."""
        return self.geometry.batched(self._by_sample(self.x))

    def channels(self, output: Tensor) -> Tensor:
        """An output of this product as [N, C, P]: samples, channels, positions. A Linear's [N, ..., C] likewise."""
        if self.geometry.kernel:
            return (output if output.dim() == len(self.geometry.kernel) + 2 else output[None]).flatten(2)
        return Geometry().batched(self._by_sample(output))

    def along(self, values: Tensor) -> Tensor:
        """One value a channel [C], so that it meets an output of this product."""
        return values.view(-1, *[1] * len(self.geometry.kernel))

    @property
    def bias_place(self) -> Tensor | None:
        """The bias, where it is a parameter (or part of one) that a shift can be written into."""
        if isinstance(self.bias, nn.Parameter) or (self.bias is not None and isinstance(self.bias._base, nn.Parameter)):
            return self.bias.detach()
        return None

    def _by_sample(self, rows: Tensor) -> Tensor:
        if self.geometry.kernel:
            return rows
        if self.samples is not None and rows.dim() == 2 and len(rows) % self.samples == 0:
            return rows.view(self.samples, -1, rows.shape[1])
        return rows.movedim(self.sample_axis, 0)


Handler = Callable[[Call], Tensor]
"""What happens at a product: called in its place, it computes the output (`call.compute()`), or another."""
