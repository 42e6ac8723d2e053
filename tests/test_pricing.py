"""deploy/pricing: multiply-adds from geometry, milliseconds from the runtime."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from repairability import InputError, prunable_layers
from repairability.deploy.pricing import LEVELS, dense_time, milliseconds, multiply_adds, time_of
from repairability.rules import allocate

IMAGES = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2)
        self.wide = nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(torch.relu(self.stem(x))))
        x = torch.relu(self.wide(torch.relu(self.wide(x))))
        return self.head(x.mean((2, 3)))


def test_multiply_adds_are_weights_times_the_places_they_are_used_at() -> None:
    model = Net().eval()
    layers = prunable_layers(model, batch=IMAGES)
    prices = multiply_adds(model, layers, IMAGES)
    assert prices.full("conv") == 16 * 4 * 9 * 6 * 6
    assert prices.full("wide") == 2 * 16 * 16 * 6 * 6  # called twice
    assert prices.fixed == 8 * 27 * 12 * 12 + 16 * 5  # stem and head
    assert float(prices.at("conv", 0.75)) == prices.full("conv") / 4


def test_a_token_counts_as_a_place() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    tokens = torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(0))
    layers = prunable_layers(model, batch=tokens)
    prices = multiply_adds(model, layers, tokens)
    assert prices.full("2") == 8 * 8 * 7


def test_milliseconds_fall_with_sparsity_and_leave_the_model_alone() -> None:
    pytest.importorskip("numba")
    model = Net().eval()
    model.wide = nn.Conv2d(16, 16, 1)
    plain = nn.Sequential(model.stem, nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 3)).eval()
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    layers = prunable_layers(plain, batch=IMAGES)
    prices = milliseconds(plain, layers, IMAGES[:1], threads=1)
    for name in layers.names:
        assert list(prices.grid[name]) == list(LEVELS)
        assert (prices.values[name][1:] <= prices.values[name][:-1]).all()
        assert prices.values[name][-1] > 0
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())
    plan = allocate(layers, sparsity=0.9, rule="uniform")
    assert time_of(plain, plan, IMAGES[:1], 1) > 0
    assert dense_time(plain, IMAGES[:1], 1) > 0


def test_a_network_that_is_not_planned_as_a_whole_has_no_speed() -> None:
    pytest.importorskip("numba")

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.conv = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.conv(x) if float(x.sum()) > -1e9 else x

    model = Branches().eval()
    layers = prunable_layers(model, batch=IMAGES)
    with pytest.raises(InputError, match="as a whole"):
        milliseconds(model, layers, IMAGES[:1], threads=1)
