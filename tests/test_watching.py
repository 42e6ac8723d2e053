"""Watching a pass: what a handler may do, what is told beside products, and that nothing stays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from networks import Residual
from repairability.network.calls import Call
from repairability.network.candidates import candidates
from repairability.network.watching import Watching


def test_another_output_goes_on_in_its_place() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    layers = [x.layer for x in candidates(model)]
    with torch.no_grad(), Watching(model, layers[:1], lambda call: torch.zeros_like(call.compute())):
        given = model(torch.randn(2, 3, 4, 4))
    torch.testing.assert_close(given, model[2].bias.detach().view(-1, 1, 1).expand(2, 2, 4, 4))


def test_norms_and_sums_are_told() -> None:
    model = Residual().eval()
    norms: list[str] = []
    sums: list[int] = []
    with (
        torch.no_grad(),
        Watching(
            model,
            [],
            lambda call: call.compute(),
            norm=lambda name, x, output: norms.append(name),
            added=lambda number, operands: sums.append(number),
        ),
    ):
        model(torch.randn(2, 3, 9, 9))
    assert norms == ["stem_bn", "bn1", "bn2", "bn3", "bn4"]
    assert sums == [0]


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


def test_nothing_is_left_behind_also_when_a_handler_fails() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1))
    calls: list[Call] = []

    def fail(call: Call) -> Tensor:
        calls.append(call)
        raise Interrupted

    with pytest.raises(Interrupted), Watching(model, [x.layer for x in candidates(model)], fail):
        model(torch.zeros(1, 3, 8, 8))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    model(torch.zeros(1, 3, 8, 8))
    assert len(calls) == 1
