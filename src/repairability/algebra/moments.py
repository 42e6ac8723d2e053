"""InputMoments: what least squares needs to know of a layer's inputs and of the outputs it should give."""

from __future__ import annotations

import torch
from torch import Tensor

from repairability.algebra.multiply import times

_STRIPE = 144
"""Rows of a Gram at a time; narrower products are slower than what they save."""


class InputMoments:
    """Sums over samples and positions, per group of the layer: of its input columns x [K] and of its targets y [R].

    xx = sum x x' [G, K, K], xy = sum x y' [G, K, R], x, y, yy = sum y^2. Centred moments (biased, over n values)
    follow: xx/n - m m'. Products and sums are taken in the activations' own precision, batch by batch, and added in
    float64.
    """

    groups: int
    inputs: int  # of one group
    outputs: int
    n: int
    xx: Tensor
    xy: Tensor
    x: Tensor
    y: Tensor
    yy: Tensor

    def __init__(self, groups: int, inputs: int, outputs: int) -> None:
        self.groups, self.inputs, self.outputs = groups, inputs, outputs
        self.n = 0
        self.xx = torch.zeros(groups, inputs, inputs, dtype=torch.float64)
        self.xy = torch.zeros(groups, inputs, outputs, dtype=torch.float64)
        self.x = torch.zeros(groups, inputs, dtype=torch.float64)
        self.y = torch.zeros(groups, outputs, dtype=torch.float64)
        self.yy = torch.zeros(groups, outputs, dtype=torch.float64)

    def update(self, x: Tensor, y: Tensor) -> None:
        """Add values: input columns [G, K, M] and targets [G, R, M] of the same M samples and positions."""
        x = x.contiguous()  # once, for all products of it
        self.n += x.shape[-1]
        self.xx += _outer_square(x).double().cpu()
        # torch sums in pairs, so float32 is good to its last bits; told to sum in float64 it takes 25 times as long
        self.x += x.sum(-1).double().cpu()
        self.add_outputs(x, y)

    def add_outputs(self, x: Tensor, y: Tensor) -> None:
        """Add targets alone, of inputs that are counted already."""
        self.xy += times(x, y.mT).double().cpu()
        self.y += y.sum(-1).double().cpu()
        self.yy += y.square().sum(-1).double().cpu()

    def update_sliding(self, x: Tensor, y: Tensor) -> None:
        """As `update`, for a window of T taps that slides along the first axis of positions: x [G, J, P + T - 1, M], of
        which tap t sees the places t .. t + P - 1, and y [G, R, P, M]; K = J T, the tap fastest.

        Taps t and t + d meet in B_t = sum of x_p x_{p+d}' over these places p, and B_t is B_{t-1} without its first
        place and with one more. So T products serve the T (T + 1) / 2 pairs of taps; the rest are products of single
        places.
        """
        groups, inner, length, _ = x.shape
        places = y.shape[2]
        taps = length - places + 1
        self.n += places * y.shape[3]
        seen = [x[:, :, t : t + places].flatten(2) for t in range(taps)]  # [G, J, P M] each, views
        targets = y.flatten(2).mT  # [G, P M, R]
        xx = self.xx.view(groups, inner, taps, inner, taps)
        for apart in range(taps):
            block = (times(seen[0], seen[apart].mT) if apart else _outer_square(seen[0])).double()
            for t in range(taps - apart):
                if t:
                    block += _place(x, t - 1 + places, apart) - _place(x, t - 1, apart)
                here = block.cpu()
                xx[:, :, t, :, t + apart] += here
                if apart:
                    xx[:, :, t + apart, :, t] += here.mT
        for t, mine in enumerate(seen):
            self.xy.view(groups, inner, taps, -1)[:, :, t] += (mine @ targets).double().cpu()
            self.x.view(groups, inner, taps)[:, :, t] += mine.sum(-1).double().cpu()
        self.y += y.flatten(2).sum(-1).double().cpu()
        self.yy += y.flatten(2).square().sum(-1).double().cpu()

    def gram(self, *, centred: bool) -> Tensor:
        """Mean of x x' [G, K, K]; centred: the covariance."""
        whole = self.xx / self.n
        mean = self.mean_x
        return whole.baddbmm_(mean[..., :, None], mean[..., None, :], alpha=-1) if centred else whole

    def cross(self, *, centred: bool) -> Tensor:
        """Mean of x y' [G, K, R]; centred: the covariance."""
        whole = self.xy / self.n
        return whole - self.mean_x[..., :, None] * self.mean_y[..., None, :] if centred else whole

    def power(self, *, centred: bool) -> Tensor:
        """Mean of y^2 [G, R]; centred: the variance."""
        whole = self.yy / self.n
        return (whole - self.mean_y.square()).clamp(min=0) if centred else whole

    def shift(self, weights: Tensor, has_place: bool = True) -> Tensor:
        """What must be added to the outputs of these weights [G, R, K] so that their mean is the targets', [G, R]; zero
        where a shift has no place.
        """
        if not has_place:
            return torch.zeros_like(self.y)
        return self.mean_y - (weights @ self.mean_x[..., None]).squeeze(-1)

    @property
    def finite(self) -> bool:
        return all(bool(sums.isfinite().all()) for sums in (self.xx, self.xy, self.yy))

    @property
    def mean_x(self) -> Tensor:
        return self.x / self.n

    @property
    def mean_y(self) -> Tensor:
        return self.y / self.n


def _outer_square(x: Tensor) -> Tensor:
    """x x' [G, K, K] of [G, K, M], by stripes of rows that leave out what lies left of the diagonal: down to half of
    the products."""
    whole = x.new_empty(x.shape[0], x.shape[1], x.shape[1])
    for start in range(0, x.shape[1], _STRIPE):
        stripe = slice(start, start + _STRIPE)
        whole[:, stripe, start:] = times(x[:, stripe], x[:, start:].mT)
    upper = whole.triu()
    return upper + upper.triu(1).mT


def _place(x: Tensor, place: int, apart: int) -> Tensor:
    """x_p x_{p + apart}' of one place p, [G, J, J] in float64."""
    return (x[:, :, place] @ x[:, :, place + apart].mT).double()
