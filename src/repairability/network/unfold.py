"""A convolution (or Linear) as a matrix product: which taps ever meet the image, and the columns they see."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repairability.errors import InputError

_FORWARDS = {
    cls: cls.forward for cls in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
}  # a subclass with a forward of its own computes something else than weight times input


@dataclass(frozen=True)
class Geometry:
    """How a layer slides its kernel; a Linear is a layer without a kernel."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # (before, after) for each spatial axis
    mode: str
    groups: int

    @classmethod
    def of(cls, name: str, module: nn.Module) -> Geometry:
        for base, forward in _FORWARDS.items():
            if isinstance(module, base) and type(module).forward is not forward:
                raise InputError(
                    f"layer {name!r} is a {type(module).__name__} with a forward of its own; only plain "
                    f"{base.__name__} layers can be measured"
                )
        if isinstance(module, nn.Linear):
            return cls((), (), (), (), "zeros", 1)
        assert isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
        if module.padding == "same":
            spans = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
            padding = tuple((span // 2, span - span // 2) for span in spans)
        elif module.padding == "valid":
            padding = ((0, 0),) * len(module.kernel_size)
        else:
            padding = tuple((int(p), int(p)) for p in module.padding)
        return cls(
            tuple(module.kernel_size),
            tuple(module.stride),
            tuple(module.dilation),
            padding,
            module.padding_mode,
            module.groups,
        )

    def batched(self, x: Tensor) -> Tensor:
        """The input as [N, C_in, *spatial]; for a Linear [N, ..., C_in] as [N, C_in, positions]."""
        if not self.kernel:
            rows = x if x.dim() > 1 else x[None]
            return rows.flatten(1, -2).movedim(-1, 1) if rows.dim() > 2 else rows[..., None]
        return x if x.dim() == len(self.kernel) + 2 else x[None]

    def out_size(self, spatial: Sequence[int]) -> tuple[int, ...]:
        if not self.kernel:
            return tuple(spatial)
        return tuple(
            (size + sum(pad) - d * (k - 1) - 1) // s + 1
            for size, pad, d, k, s in zip(spatial, self.padding, self.dilation, self.kernel, self.stride, strict=True)
        )

    def every_tap(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*map(range, self.kernel)))

    def live_taps(self, spatial: Sequence[int]) -> list[tuple[int, ...]]:
        """The kernel taps that ever meet the image. With zero padding the others only multiply zeros: on a 1 x 1 map
        a padded 3 x 3 kernel has one live tap of nine.
        """
        if self.mode != "zeros":
            return self.every_tap()
        axes = []
        for axis, outputs in enumerate(self.out_size(spatial) if self.kernel else ()):
            before, step = self.padding[axis][0], self.stride[axis]
            axes.append(
                [
                    tap
                    for tap in range(self.kernel[axis])
                    if any(0 <= o * step + tap * self.dilation[axis] - before < spatial[axis] for o in range(outputs))
                ]
            )
        return list(itertools.product(*axes))

    def unfold(self, x: Tensor, taps: Sequence[tuple[int, ...]]) -> Tensor:
        """[N, C_in, *spatial] -> columns [C_in * taps, positions * N], the sample fastest: each tap then copies whole
        rows, and sums over positions run along memory.
        """
        if not self.kernel:
            return x.permute(1, 2, 0).reshape(x.shape[1], -1)
        x = self.padded(x)
        size = self.out_size_padded(x.shape[2:])
        x = x.movedim(0, -1).contiguous()  # [C_in, *spatial, N]
        columns = x.new_empty((x.shape[0], len(taps), *size, x.shape[-1]))
        for i, tap in enumerate(taps):
            columns[:, i] = x[(slice(None), *self._windows(tap, size))]
        return columns.view(x.shape[0] * len(taps), -1)

    @property
    def slides(self) -> bool:
        """Whether the kernel goes along the last axis step by step: its taps there see the same values, shifted."""
        return len(self.kernel) > 0 and self.kernel[-1] > 1 and self.stride[-1] == self.dilation[-1] == 1

    def unfold_but_last(self, x: Tensor) -> Tensor:
        """[N, C_in, *spatial] -> [C_in * taps of the other axes, padded length of the last axis, positions * N]: as
        `unfold` without the taps of the last axis, which stands first among the positions. Only where it `slides`.
        """
        x = self.padded(x)
        size = self.out_size_padded(x.shape[2:])[:-1]
        x = x.movedim(-1, 2).movedim(0, -1).contiguous()  # [C_in, last, *others, N]
        taps = list(itertools.product(*map(range, self.kernel[:-1])))
        columns = x.new_empty((x.shape[0], len(taps), x.shape[1], *size, x.shape[-1]))
        for i, tap in enumerate(taps):
            columns[:, i] = x[(slice(None), slice(None), *self._windows(tap, size))]
        return columns.view(x.shape[0] * len(taps), x.shape[1], -1)

    def padded(self, x: Tensor) -> Tensor:
        if not any(p for pair in self.padding for p in pair):
            return x
        flat = [p for pair in reversed(self.padding) for p in pair]
        return F.pad(x, flat, mode="constant" if self.mode == "zeros" else self.mode)

    def _windows(self, tap: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
        """What one tap sees of the first axes, as many as `size` has."""
        return tuple(
            slice(t * d, t * d + s * (o - 1) + 1, s)
            for t, o, d, s in zip(tap, size, self.dilation, self.stride, strict=False)
        )

    def out_size_padded(self, spatial: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            (size - d * (k - 1) - 1) // s + 1
            for size, d, k, s in zip(spatial, self.dilation, self.kernel, self.stride, strict=True)
        )

    def tap_numbers(self, taps: Sequence[tuple[int, ...]]) -> list[int]:
        """The position of each tap in a filter's flat kernel."""
        grid = torch.arange(torch.Size(self.kernel).numel()).view(self.kernel)
        return [int(grid[tap]) for tap in taps]
