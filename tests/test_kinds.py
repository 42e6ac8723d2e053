from __future__ import annotations

import pytest
import torch
from torch import nn

from repairability.network.kinds import CONVOLUTIONS, KINDS, LINEAR, TYPES, Kind, kind_of
from test_readers import Conv1D


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        pytest.param(kind, groups, id=f"{name}-{groups}")
        for name, kind in KINDS.items()
        for groups in ((1, 2, 4) if kind.axes else (1,))
    ],
)
def test_filters_and_back_again(kind: Kind, groups: int) -> None:
    """Every weight stands in exactly one place of its filters, and a filter makes one channel."""
    inputs, outputs, kernel = 8, 12, (3, 2, 5)[: kind.axes]
    shape = (inputs, outputs // groups, *kernel) if kind.transposed else (outputs, inputs // groups, *kernel)
    weight = torch.arange(torch.Size(shape).numel()).view(shape)
    filters = kind.filters(weight, groups)
    assert filters.shape == (groups, outputs // groups, weight.numel() // outputs)
    assert torch.equal(kind.weight(filters, shape), weight)
    assert torch.equal(kind.filters(kind.weight(filters, shape), groups), filters)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_filter_makes_one_channel(groups: int) -> None:
    """Without one filter its channel is silent, and no other."""
    layers = [
        nn.Conv2d(4, 6, 3, bias=False, groups=groups),
        nn.ConvTranspose2d(4, 6, 3, 2, bias=False, groups=groups),
        *([nn.Linear(4, 6, bias=False)] if groups == 1 else []),
    ]
    for layer in layers:
        kind = kind_of(layer)
        assert kind is not None
        filters = kind.filters(layer.weight.detach().clone(), groups).clone()
        filters[-1, 1] = 0
        with torch.no_grad():
            layer.weight.copy_(kind.weight(filters, layer.weight.shape))
            out = layer(torch.randn(5, 4) if isinstance(layer, nn.Linear) else torch.randn(5, 4, 7, 7))
        silent = out.transpose(0, 1).flatten(1).abs().amax(1) == 0
        assert silent.nonzero().flatten().tolist() == [(groups - 1) * 6 // groups + 1]


def test_which_module_is_of_which_kind() -> None:
    class Own(nn.Conv2d):
        pass

    for module, name in (
        (nn.Conv1d(2, 2, 1), "conv1d"),
        (Own(2, 2, 1), "conv2d"),
        (nn.ConvTranspose3d(2, 2, 1), "conv_transpose3d"),
        (nn.Linear(2, 2), "linear"),
        (nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2), "linear"),
        (Conv1D(), "matrix"),
    ):
        kind = kind_of(module)
        assert kind is not None
        assert kind.name == name
    for other in (nn.Embedding(2, 2), nn.BatchNorm2d(2), nn.Bilinear(2, 2, 2), nn.LSTM(2, 2), nn.Sequential()):
        assert kind_of(other) is None


def test_every_kind_can_be_asked_for() -> None:
    assert {kind for kinds in TYPES.values() for kind in kinds} == set(KINDS) == {*CONVOLUTIONS, *LINEAR}
    assert TYPES["conv"] == ("conv2d",)
    assert all(KINDS[name].family == "conv" for name in CONVOLUTIONS)
    assert all(KINDS[name].family == "linear" for name in LINEAR)
