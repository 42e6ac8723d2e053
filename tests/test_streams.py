from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from conftest import begun_since
from networks import Residual
from repairability import InputError, prunable_layers
from repairability.network.discover import layers_named
from repairability.network.streams import Halt, Stream, streams
from repairability.network.trace import trace
from test_sacred import complete_state, same

BATCHES = list(torch.randn(10, 3, 9, 9, generator=torch.Generator().manual_seed(1)).split(4))


def advanced(stream: Stream) -> Halt:
    halt = stream.advance()
    assert halt is not None
    return halt


def test_a_pass_halts_behind_each_layer_and_ends_as_a_plain_one_would() -> None:
    model = Residual().eval()
    layers = prunable_layers(model)
    found = trace(model, layers, BATCHES[0])
    with streams(model, BATCHES, layers, found.joins, before=False) as running:
        halts = [[advanced(stream) for stream in running] for _ in range(len(found.order) + len(found.joins))]
        assert [stream.advance() for stream in running] == [None] * len(BATCHES)  # the end
    names = [halt[0].layer for halt in halts]
    assert names == ["conv1", "depthwise", "shortcut", "shortcut", "conv2"]  # the second time at the addition
    with torch.no_grad():
        x = model.stem_bn(model.stem(BATCHES[1])).relu()
        torch.testing.assert_close(halts[0][1].output, model.conv1(x))
        y = model.bn1(model.conv1(x)).relu()
        torch.testing.assert_close(halts[3][1].branch, model.bn3(model.shortcut(x)))
        torch.testing.assert_close(halts[3][1].other, model.bn2(model.depthwise(y)))


def test_before_a_layer_it_can_still_be_written() -> None:
    model = Residual().eval()
    with streams(model, BATCHES[:1], layers_named(model, ["conv1", "conv2"]), {}, before=True) as (stream,):
        stream.advance()
        with torch.no_grad():
            model.conv1.weight.zero_()
        halt = advanced(stream)
    with torch.no_grad():
        x = model.stem_bn(model.stem(BATCHES[0])).relu()
        y = model.bn1(model.conv1(x)).relu()
        expected = (model.bn2(model.depthwise(y)) + model.bn3(model.shortcut(x))).relu()
    assert halt.call is not None
    assert halt.output is None
    torch.testing.assert_close(halt.call.x, expected)


def test_no_gradients_and_nothing_left_behind() -> None:
    model = Residual()
    before, threads = complete_state(model), threading.enumerate()
    with streams(model, BATCHES, layers_named(model, ["conv1"]), {}, before=False) as running:
        output = advanced(running[0]).output
        assert output is not None
        assert not output.requires_grad
    assert same(complete_state(model), before)
    assert not begun_since(threads)


def test_an_error_of_the_model_reaches_whoever_advances() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("never")

    model, threads = Failing(), threading.enumerate()
    with (
        pytest.raises(InputError, match="never"),
        streams(model, BATCHES, layers_named(model, ["conv"]), {}, before=True) as running,
    ):
        running[0].advance()
    assert not begun_since(threads)


def test_a_forward_of_ones_own_runs_every_pass() -> None:
    model = Residual().eval()
    layers = layers_named(model, ["conv1"])
    batches = [{"pixels": batch} for batch in BATCHES]

    def forward(network: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        out: Tensor = network(batch["pixels"])
        return out

    with (
        streams(model, batches, layers, {}, before=False, forward=forward) as named,
        streams(model, BATCHES, layers, {}, before=False) as plain,
    ):
        for one, other in zip(named, plain, strict=True):
            torch.testing.assert_close(advanced(one).output, advanced(other).output)
