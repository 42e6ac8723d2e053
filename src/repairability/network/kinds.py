"""Kinds of layers: which modules they serve, and how a weight is a matrix of filters.

A filter makes one output channel. Whatever its layout, a weight is seen as filters [G, R, K]: groups, filters of a
group, weights of a filter in the order in which `Geometry.unfold` lays out its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Kind:
    """A weight [out, in / groups, *kernel], as a convolution or a Linear (no kernel) holds it."""

    name: str
    classes: tuple[type[nn.Module], ...]
    axes: int = 0  # spatial axes of the kernel
    transposed: bool = False  # [in, out / groups, *kernel] instead

    @property
    def family(self) -> str:
        return "conv" if self.axes else "linear"

    def filters(self, weight: Tensor, groups: int = 1) -> Tensor:
        """A tensor of the weight's shape as [G, R, K]; a transposed convolution's taps are turned round, since it is a
        convolution of the input with zeros between its values.
        """
        if not self.transposed:
            return weight.reshape(groups, weight.shape[0] // groups, -1)
        turned = weight.flip(tuple(range(2, 2 + self.axes))) if self.axes else weight
        parts = turned.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])  # [G, in / G, out / G, *kernel]
        return parts.transpose(1, 2).reshape(groups, weight.shape[1], -1)

    def weight(self, filters: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """`filters` back as a tensor of the weight's shape."""
        if not self.transposed:
            return filters.reshape(shape)
        groups, inputs = filters.shape[0], shape[0] // filters.shape[0]
        parts = filters.reshape(groups, shape[1], inputs, *shape[2:]).transpose(1, 2).reshape(shape)
        return parts.flip(tuple(range(2, 2 + self.axes))) if self.axes else parts


KINDS: dict[str, Kind] = {
    "conv1d": Kind("conv1d", (nn.Conv1d,), 1),
    "conv2d": Kind("conv2d", (nn.Conv2d,), 2),
    "conv3d": Kind("conv3d", (nn.Conv3d,), 3),
    "conv_transpose1d": Kind("conv_transpose1d", (nn.ConvTranspose1d,), 1, transposed=True),
    "conv_transpose2d": Kind("conv_transpose2d", (nn.ConvTranspose2d,), 2, transposed=True),
    "conv_transpose3d": Kind("conv_transpose3d", (nn.ConvTranspose3d,), 3, transposed=True),
    "linear": Kind("linear", (nn.Linear,)),
    "matrix": Kind("matrix", (), transposed=True),  # [in, out]: x @ weight, as transformers' Conv1D
}

CONVOLUTIONS = tuple(name for name, kind in KINDS.items() if kind.axes)
LINEAR = tuple(name for name, kind in KINDS.items() if not kind.axes)

TYPES: dict[str, tuple[str, ...]] = {
    "conv": ("conv2d",),
    **{name: (name,) for name in CONVOLUTIONS},
    "linear": LINEAR,
}
"""What `types` may name, and the kinds it means; "conv" is Conv2d, the method's own setting."""

NAMED_CLASSES = {"transformers.pytorch_utils.Conv1D": "matrix"}
"""Classes of packages that need not be installed, by their full name."""


def kind_of(module: nn.Module) -> Kind | None:
    """The kind that serves a module, or none; TorchScript's code is fixed, and none of ours."""
    if isinstance(module, torch.jit.ScriptModule):
        return None
    for kind in KINDS.values():
        if isinstance(module, kind.classes):
            return kind
    for cls in type(module).__mro__:
        name = NAMED_CLASSES.get(f"{cls.__module__}.{cls.__qualname__}")
        if name is not None:
            return KINDS[name]
    return None
