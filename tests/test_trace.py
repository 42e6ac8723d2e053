from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from networks import Residual, Twice
from repairability import InputError, prunable_layers
from repairability.network.batches import PROBE
from repairability.network.trace import trace
from repairability.network.unfold import Geometry

pytestmark = pytest.mark.usefixtures("quiet")


def test_order_calls_inputs_and_norms() -> None:
    net = Residual()
    found = trace(net, prunable_layers(net), torch.randn(2, 3, 8, 8))
    assert found.order == ("conv1", "depthwise", "shortcut", "conv2")
    assert found.calls == dict.fromkeys(found.order, 1)
    assert found.norms == {"conv1": "bn1", "depthwise": "bn2", "shortcut": "bn3", "conv2": "bn4"}
    assert found.own_norms == found.norms
    assert found.shiftable == frozenset(found.order)  # by a bias, or by the BatchNorm behind
    assert set(found.biases) == {"conv1", "conv2"}
    assert found.geometries["conv1"] == Geometry.convolution((3, 3), stride=2, padding=1, groups=4)
    assert found.inputs["conv1"] == (2, 8, 8, 8)  # as many samples as there are, up to 16


def test_execution_order_is_not_definition_order() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.second, self.first = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(input=self.stem(x)))  # also: a keyword argument

    net = Backwards()
    assert trace(net, prunable_layers(net), torch.randn(1, 1, 2, 2)).order == ("first", "second")


def test_repeated_and_unreached_layers() -> None:
    net = Twice()
    with pytest.raises(InputError, match="the model never reaches unused on these images"):
        trace(net, prunable_layers(net), torch.randn(1, 3, 4, 4))
    found = trace(net, prunable_layers(net, skip=("@first", "unused")), torch.randn(1, 3, 4, 4))
    assert found.calls == {"body": 2, "last": 1}


class OnDemand(nn.Module):
    """A layer that only some samples reach, as experts are."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.rare = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.stem(x))
        wanted = x.mean((1, 2, 3)) > 0
        if wanted.any():
            out = out.clone()
            out[wanted] = self.rare(out[wanted])
        return out


def test_a_few_samples_show_the_way_and_all_of_them_where_those_do_not() -> None:
    net = OnDemand()
    layers = prunable_layers(net, skip=("@first",))
    images = -torch.ones(20, 1, 2, 2)
    assert trace(net, prunable_layers(net, only=("body",)), images).inputs["body"] == (PROBE, 1, 2, 2)
    assert trace(net, layers, images, needed=("body",)).order == ("body",)
    with pytest.raises(InputError, match="the model never reaches rare on these images"):
        trace(net, layers, images)
    images[-1] = 1
    found = trace(net, layers, images)
    assert found.order == ("body", "rare")
    assert found.inputs == {"body": (20, 1, 2, 2), "rare": (1, 1, 2, 2)}


def test_a_batch_norm_that_several_layers_use_is_nobodys_own() -> None:
    class SharedNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b = (nn.Conv2d(2, 2, 1, bias=False) for _ in range(3))
            self.norm, self.own = nn.BatchNorm2d(2), nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.a(self.norm(self.stem(x))))
            out: Tensor = self.own(self.b(x))
            return out

    net = SharedNorm()
    found = trace(net, prunable_layers(net), torch.randn(3, 2, 4, 4))
    assert found.norms == {"a": "norm", "b": "own"}
    assert found.own_norms == {"b": "own"}
    assert found.shiftable == {"b"}
    assert not found.biases
