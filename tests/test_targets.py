"""Columns at drawn places, and targets that move where a difference is not felt."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repairability import CalibrationSet, prunable_layers
from repairability.algebra.least_squares import LeastSquares
from repairability.algebra.moments import InputMoments
from repairability.algebra.targets import Targets
from repairability.network.flat import Flat
from repairability.network.unfold import Geometry
from repairability.repairs import walk as walking
from repairability.repairs.station import Station
from repairability.repairs.walk import walk
from test_unfold import CASES, TRANSPOSED

pytestmark = pytest.mark.usefixtures("quiet")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- columns --------------------------------------------------------------------------------------------------------


def geometries() -> list[Any]:
    turned = [
        (Geometry.transposed(x.kernel_size, x.stride, x.padding, x.output_padding, x.groups, x.dilation), shape)
        for x, shape in TRANSPOSED
    ]
    return [*((geometry, shape) for _, shape, geometry in CASES), *turned]


@pytest.mark.parametrize(("geometry", "shape"), geometries())
def test_columns_at_places_are_those_of_the_whole(geometry: Geometry, shape: tuple[int, ...]) -> None:
    x = geometry.batched(randn(*shape))
    whole = geometry.unfold(x, geometry.every_tap())
    whole = whole.view(len(whole), -1, len(x))  # [K, positions, N]
    positions = whole.shape[1]
    order = torch.randperm(positions, generator=torch.Generator().manual_seed(1))
    for places in (order[:1], order[: positions // 2 + 1].sort().values, order, torch.arange(positions)):
        found = geometry.columns_at(x, places)
        assert found.equal(whole[:, places].flatten(1))


# --- targets that move ----------------------------------------------------------------------------------------------


def test_beyond_an_end_the_nearest_good_output_is_the_target() -> None:
    y = torch.tensor([-2.0, -2.0, -2.0, 0.5, 0.5, 7.0, 7.0, 7.0]).view(1, 1, 8)
    given = torch.tensor([-9.0, -1.0, 3.0, -4.0, 9.0, 8.0, 6.5, -1.0]).view(1, 1, 8)
    expected = torch.tensor([-9.0, -1.0, 0.0, 0.5, 0.5, 8.0, 6.5, 6.0]).view(1, 1, 8)
    ends = torch.tensor([0.0]).view(1, 1, 1), torch.tensor([6.0]).view(1, 1, 1)
    targets = Targets(torch.zeros(1, 1, 8), y, *ends)
    assert targets.moved(given).y.equal(expected)
    assert targets.y.equal(y)
    assert targets.moved(targets.moved(given).y).y.equal(expected)  # a target that was moved stays
    assert Targets(targets.x, y, low=ends[0]).moved(given).y.flatten().tolist() == [-9, -1, 0, 0.5, 0.5, 7, 7, 7]
    assert Targets(targets.x, y, high=ends[1]).moved(given).y.flatten().tolist() == [-2, -2, -2, 0.5, 0.5, 8, 6.5, 6]


def test_without_ends_nothing_moves() -> None:
    targets = Targets(randn(1, 3, 5), randn(1, 2, 5, seed=1))
    assert targets.moved(randn(1, 2, 5, seed=2)).y.equal(targets.y)
    nowhere = torch.full((1, 2, 1), math.inf, dtype=torch.float64)
    open_ends = Targets(targets.x, targets.y, -nowhere, nowhere)
    assert open_ends.moved(randn(1, 2, 5, seed=2)).y.equal(targets.y)


def random_targets(seed: int, groups: int = 2, inputs: int = 8, outputs: int = 3, columns: int = 300) -> Targets:
    x = randn(groups, inputs, columns, seed=seed) + 0.5
    y = randn(groups, outputs, inputs, seed=seed + 1) @ x
    low = randn(groups, outputs, columns, seed=seed + 2)
    return Targets(x, y, low, low + 3 * randn(groups, outputs, columns, seed=seed + 3).abs() + 0.1)


def felt_loss(targets: Targets, given: Tensor) -> Tensor:
    """The squared distance to the nearest good output, written out; per output [G, R]."""
    assert targets.low is not None
    assert targets.high is not None
    y, low, high = targets.y, targets.low, targets.high
    below, above = (given - low).clamp(min=0), (high - given).clamp(min=0)
    loss = torch.where(y <= low, below, torch.where(y >= high, above, given - y))
    return loss.square().mean(-1)


@pytest.mark.parametrize("seed", [0, 10, 20])
def test_the_felt_loss_falls_from_round_to_round(seed: int) -> None:
    targets = random_targets(seed)
    support = randn(2, 3, 8, seed=seed + 4) > 0
    weights = torch.linalg.lstsq(targets.x.mT, targets.y.mT).solution.mT
    moments = targets.moments()
    losses, fitted = [], torch.zeros_like(weights)
    for _ in range(8):
        problem = LeastSquares.of(moments, weights, torch.ones(2, 3), centred=True)
        fitted = problem.refitted(support, 0.0)
        given = targets.given(fitted, moments.shift(fitted))
        losses.append(felt_loss(targets, given).sum().item())
        moments = targets.moved(given).of_outputs(moments)
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(losses))
    assert losses[-1] < 0.9 * losses[0]  # and it is worth it


def test_moments_are_sums_over_the_columns() -> None:
    targets = random_targets(3)
    whole = InputMoments(2, 8, 3)
    whole.update(targets.x, targets.y)
    found = targets.moments()
    moved = targets.moved(randn(2, 3, 300, seed=8))
    again, fresh = moved.of_outputs(found), moved.moments()
    for name in ("n", "xx", "xy", "x", "y", "yy"):
        torch.testing.assert_close(getattr(found, name), getattr(whole, name))
        torch.testing.assert_close(getattr(again, name), getattr(fresh, name))
    assert not found.xy.equal(again.xy)  # the first ones are left as they are


def test_what_is_given_is_the_product_and_the_shift() -> None:
    targets, weights, shift = random_targets(4), randn(2, 3, 8, seed=5), randn(2, 3, seed=6)
    torch.testing.assert_close(targets.given(weights, shift), weights @ targets.x + shift[..., None])


def test_the_shift_meets_the_mean() -> None:
    targets, weights = random_targets(5), randn(2, 3, 8, seed=5)
    moments = targets.moments()
    given = targets.given(weights, moments.shift(weights))
    torch.testing.assert_close(given.mean(-1), targets.y.mean(-1))
    assert not moments.shift(weights, has_place=False).any()


# --- of a station ---------------------------------------------------------------------------------------------------


class Branch(nn.Module):
    """A convolution, its norm (weights of either sign, one zero), the sum with a shortcut, an activation."""

    def __init__(self, *, norm: bool = True, summed: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.conv = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1, bias=not norm)
        self.norm = nn.BatchNorm2d(4) if norm else nn.Identity()
        self.summed = summed
        self.head = nn.Linear(4, 2)
        if norm:
            with torch.no_grad():
                self.norm.weight.copy_(torch.tensor([1.5, -0.7, 0.0, 0.3]))
                self.norm.bias.copy_(torch.tensor([0.2, 0.1, -0.3, 0.0]))
                self.norm.running_mean.copy_(torch.tensor([0.1, -0.2, 0.3, 0.0]))
                self.norm.running_var.copy_(torch.tensor([0.5, 2.0, 1.0, 0.2]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.conv(x))
        out: Tensor = self.head(F.relu6(y + x if self.summed else y).mean((2, 3)))
        return out


def station_of(model: nn.Module, name: str, images: Tensor) -> Station:
    layers = prunable_layers(model, skip=(), types=("conv", "linear"))
    return next(x for x in walk(model, model, layers, CalibrationSet(images, count=8)) if x.layer.name == name)


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_beyond_the_ends_the_activation_does_not_feel_it(norm: bool, summed: bool) -> None:
    model = Branch(norm=norm, summed=summed).double().eval()
    station = station_of(model, "conv", randn(20, 3, 5, 5))
    assert station.flat == Flat(0.0, 6.0, summed=summed)
    other = 2 * randn(4, 500, seed=1) if summed else None
    low, high = station._ends(station.flat, other)
    scale, shift = torch.ones(4, 1).double(), torch.zeros(4, 1).double()
    if norm:
        bn = model.norm
        scale = (bn.weight / (bn.running_var + bn.eps).sqrt()).detach()[:, None]
        shift = bn.bias.detach()[:, None] - scale * bn.running_mean[:, None]
    y = 10 * randn(4, 500, seed=2)
    behind = scale * y + shift + (0 if other is None else other)
    flat = (behind < 0) | (behind > 6)
    beyond = (y < low) | (y > high)
    alive = scale[:, 0] != 0
    assert beyond[alive].equal(flat[alive])
    assert not beyond[~alive].any()  # a channel that its norm silences has no ends


@pytest.mark.parametrize("summed", [False, True])
def test_all_places_of_all_images_are_the_whole_problem(summed: bool) -> None:
    model = Branch(summed=summed).double().eval()
    station = station_of(model, "conv", randn(20, 3, 5, 5))
    targets = station.targets(1e9, 0)
    assert targets.x.shape == (1, 36, 20 * 25)
    assert targets.low is not None
    assert targets.low.shape[-1] == (500 if summed else 1)
    found, wanted = targets.moments(), station.moments()
    for name in ("n", "xx", "xy", "x", "y", "yy"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))


def test_a_few_places_are_drawn_by_the_seed() -> None:
    model = Branch().double().eval()
    station = station_of(model, "conv", randn(20, 3, 5, 5))
    one, again, other = station.targets(2.0, 0), station.targets(2.0, 0), station.targets(2.0, 1)
    assert one.x.shape[-1] == 20 * 4  # 2 x 36 of 20 images: 3.6 places of each
    assert one.x.equal(again.x)
    assert one.y.equal(again.y)
    assert not one.x.equal(other.x)
    assert station.targets(1e-9, 0).x.shape[-1] == 20  # of every image at least one


def test_batches_of_one_column_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Linear on vectors, one image a batch: each pass brings one column."""
    model = Branch().double().eval()
    wanted = station_of(model, "head", randn(12, 3, 5, 5)).moments()
    monkeypatch.setattr(walking, "_BATCH", 1)
    station = station_of(model, "head", randn(12, 3, 5, 5))
    assert len(station.pairs) == 12
    found = station.targets(1e9, 0).moments()
    for name in ("n", "xx", "xy", "x", "y", "yy"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))
