"""A product: where its shift is written, which values are its channels', what it computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from test_readers import Functional, N, randn, watched


def test_where_a_shift_can_be_written() -> None:
    layer = nn.Linear(4, 6).double()
    _, ((call, _),) = watched(layer, randn(N, 4))
    assert call.bias_place is not None
    call.bias_place.fill_(3)
    assert layer.bias.tolist() == [3.0] * 6
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
    x = randn(N, 5, 8)
    _, seen = watched(attention, x, x, x)
    with torch.no_grad():
        for i, (call, _) in enumerate(seen[:3]):  # rows of the packed bias
            assert call.bias_place is not None
            call.bias_place.fill_(i + 1)
    assert attention.in_proj_bias.tolist() == [1.0] * 8 + [2.0] * 8 + [3.0] * 8
    model = Functional(lambda x, fc: F.linear(x, fc.weight, fc.bias * 2)).double()
    _, ((call, _),) = watched(model, randn(N, 4))
    assert call.bias is not None
    assert call.bias_place is None  # a number that is computed is no place


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 6, 3), nn.ConvTranspose2d(4, 6, 3, groups=2), nn.Linear(6, 6)])
def test_values_meet_their_channels(layer: nn.Module) -> None:
    x = randn(N, 5, 6) if isinstance(layer, nn.Linear) else randn(N, 4, 7, 6)
    _, ((call, output),) = watched(layer.double(), x)
    values = torch.arange(6).double()
    torch.testing.assert_close(call.channels(output * call.along(values)), call.channels(output) * values[:, None])


def test_products_are_computed_with_the_weights_as_they_are_by_then() -> None:
    layer = nn.Linear(4, 6).double()
    _, ((call, before),) = watched(layer, randn(N, 4))
    with torch.no_grad():
        layer.weight.mul_(2)
        torch.testing.assert_close(call.compute() - layer.bias, 2 * (before - layer.bias))
