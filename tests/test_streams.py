from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from networks import Residual
from repairability import InputError, prunable_layers
from repairability.network.streams import streams
from repairability.network.trace import trace
from test_sacred import complete_state, same

BATCHES = list(torch.randn(10, 3, 9, 9, generator=torch.Generator().manual_seed(1)).split(4))


def test_a_pass_halts_behind_each_layer_and_ends_as_a_plain_one_would() -> None:
    model = Residual().eval()
    found = trace(model, prunable_layers(model), BATCHES[0])
    with streams(model, BATCHES, found.order, found.joins, before=False) as running:
        halts = [[stream.advance() for stream in running] for _ in range(len(found.order) + len(found.joins))]
    names = [halt[0].layer for halt in halts]
    assert names == ["conv1", "depthwise", "shortcut", "shortcut", "conv2"]  # the second time at the addition
    with torch.no_grad():
        x = model.stem_bn(model.stem(BATCHES[1])).relu()
        torch.testing.assert_close(halts[0][1].tensor, model.conv1(x))
        y = model.bn1(model.conv1(x)).relu()
        torch.testing.assert_close(halts[3][1].tensor, model.bn3(model.shortcut(x)))
        torch.testing.assert_close(halts[3][1].other, model.bn2(model.depthwise(y)))


def test_before_a_layer_it_can_still_be_written() -> None:
    model = Residual().eval()
    with streams(model, BATCHES[:1], ["conv1", "conv2"], {}, before=True) as (stream,):
        stream.advance()
        with torch.no_grad():
            model.conv1.weight.zero_()
        halt = stream.advance()
    with torch.no_grad():
        x = model.stem_bn(model.stem(BATCHES[0])).relu()
        y = model.bn1(model.conv1(x)).relu()
        expected = (model.bn2(model.depthwise(y)) + model.bn3(model.shortcut(x))).relu()
    torch.testing.assert_close(halt.tensor, expected)


def test_no_gradients_and_nothing_left_behind() -> None:
    model = Residual()
    before, threads = complete_state(model), threading.active_count()
    with streams(model, BATCHES, ["conv1"], {}, before=False) as running:
        assert not running[0].advance().tensor.requires_grad
    assert same(complete_state(model), before)
    assert threading.active_count() == threads


def test_an_error_of_the_model_reaches_whoever_advances() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("never")

    threads = threading.active_count()
    with (
        pytest.raises(InputError, match="never"),
        streams(Failing(), BATCHES, ["conv"], {}, before=True) as running,
    ):
        running[0].advance()
    assert threading.active_count() == threads
