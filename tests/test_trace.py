from __future__ import annotations

import pytest
import torch
from torch import nn

from networks import Residual, Twice
from repairability import InputError, prunable_layers
from repairability.network.trace import trace


def test_order_calls_inputs_and_norms() -> None:
    net = Residual()
    found = trace(net, prunable_layers(net), torch.randn(2, 3, 8, 8))
    assert found.order == ("conv1", "depthwise", "shortcut", "conv2")
    assert found.calls == dict.fromkeys(found.order, 1)
    assert found.norms == {"conv1": "bn1", "depthwise": "bn2", "shortcut": "bn3", "conv2": "bn4"}
    assert found.own_norms == found.norms
    assert found.inputs["conv1"] == (1, 8, 8, 8)


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
