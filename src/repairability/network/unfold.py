"""A convolution (or Linear) as a matrix product: which taps ever meet the image, and the columns they see."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Geometry:
    """How a product slides its kernel over the input; a Linear is one without a kernel.

    A transposed convolution is a convolution of stride 1 over the input with `spread` - 1 zeros between its values.
    """

    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()  # (before, after) for each spatial axis; less than 0 cuts off
    groups: int = 1
    spread: tuple[int, ...] = ()  # empty: 1 everywhere

    @classmethod
    def convolution(
        cls,
        kernel: Sequence[int],
        stride: Sequence[int] | int = 1,
        padding: Sequence[int] | int | str = 0,
        dilation: Sequence[int] | int = 1,
        groups: int = 1,
    ) -> Geometry:
        """As the arguments of `conv2d` and its sisters say."""
        axes = len(kernel)
        dilations = _each(dilation, axes)
        if padding == "same":
            spans = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
            pads = tuple((span // 2, span - span // 2) for span in spans)
        elif padding == "valid":
            pads = ((0, 0),) * axes
        else:
            assert not isinstance(padding, str)
            pads = tuple((p, p) for p in _each(padding, axes))
        return cls(tuple(kernel), _each(stride, axes), dilations, pads, groups)

    @classmethod
    def transposed(
        cls,
        kernel: Sequence[int],
        stride: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        output_padding: Sequence[int] | int = 0,
        groups: int = 1,
        dilation: Sequence[int] | int = 1,
    ) -> Geometry:
        """As the arguments of `conv_transpose2d` and its sisters say: out[p] = sum over t of x[(p + pad - t d) / s]
        w[t], which is the turned kernel over the spread input, padded by d (k - 1) - pad.
        """
        axes = len(kernel)
        dilations, more = _each(dilation, axes), _each(output_padding, axes)
        spans = [d * (k - 1) - p for d, k, p in zip(dilations, kernel, _each(padding, axes), strict=True)]
        pads = tuple((span, span + extra) for span, extra in zip(spans, more, strict=True))
        return cls(tuple(kernel), (1,) * axes, dilations, pads, groups, _each(stride, axes))

    def batched(self, x: Tensor) -> Tensor:
        """The input as [N, C_in, *spatial]; for a Linear [N, ..., C_in] as [N, C_in, positions]."""
        if not self.kernel:
            rows = x if x.dim() > 1 else x[None]
            return rows.flatten(1, -2).movedim(-1, 1) if rows.dim() > 2 else rows[..., None]
        whole = x if x.dim() == len(self.kernel) + 2 else x[None]
        if all(step == 1 for step in self.spread):
            return whole
        sizes = [step * (size - 1) + 1 for size, step in zip(whole.shape[2:], self.spread, strict=True)]
        spread = whole.new_zeros((*whole.shape[:2], *sizes))
        spread[(slice(None), slice(None), *(slice(None, None, step) for step in self.spread))] = whole
        return spread

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
        """The kernel taps that ever meet the image. The others only multiply zeros of the padding: on a 1 x 1 map a
        padded 3 x 3 kernel has one live tap of nine.
        """
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

    def columns_at(self, x: Tensor, places: Tensor) -> Tensor:
        """As `unfold` with every tap, at some of the positions only: [C_in * taps, places * N], the sample fastest."""
        if not self.kernel:
            return x[:, :, places].permute(1, 2, 0).reshape(x.shape[1], -1)
        x = self.padded(x)
        size = self.out_size_padded(x.shape[2:])
        corner = torch.unravel_index(places, size)
        taps = self.every_tap()
        columns = x.new_empty(x.shape[1], len(taps), len(places), len(x))
        flat = x.flatten(2)  # [N, C_in, positions of the padded input]
        for i, tap in enumerate(taps):
            at = torch.zeros_like(places)
            for o, t, s, d, length in zip(corner, tap, self.stride, self.dilation, x.shape[2:], strict=True):
                at = at * length + o * s + t * d
            columns[:, i] = flat[:, :, at].permute(1, 2, 0)
        return columns.view(x.shape[1] * len(taps), -1)

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
        return F.pad(x, flat)

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


def _each(value: Sequence[int] | int, axes: int) -> tuple[int, ...]:
    """One number for all axes, or one for each (a list of one counts for all)."""
    values = (int(value),) if isinstance(value, int) else tuple(int(x) for x in value)
    return values * axes if len(values) == 1 else values
