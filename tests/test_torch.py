from __future__ import annotations

import pytest
import torch
from torch import nn

from networks import small_net
from repairability._torch import evaluating, output_hooks, seeded


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


def test_each_submodules_mode_returns() -> None:
    net = small_net()
    net.train()
    net[2].eval()
    with pytest.raises(Interrupted), evaluating(net):
        assert not any(m.training for m in net.modules())
        assert not torch.is_grad_enabled()
        raise Interrupted
    assert [m.training for m in net] == [True, True, False, True, True, True, True, True]
    assert torch.is_grad_enabled()


def test_random_state_returns() -> None:
    before = torch.get_rng_state()
    with evaluating(nn.Dropout()):
        torch.rand(3)
    with seeded(5):
        first = torch.rand(3)
    with seeded(5):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_hooks_go_again_also_when_one_fails() -> None:
    net = small_net()

    def fail(*_: object) -> None:
        raise Interrupted

    with pytest.raises(Interrupted), output_hooks({net[0]: fail}):
        net(torch.zeros(1, 3, 8, 8))
    assert not any(m._forward_hooks for m in net.modules())
    net(torch.zeros(1, 3, 8, 8))


def test_hooks_go_again_when_registering_fails() -> None:
    net = small_net()
    with pytest.raises(AttributeError), output_hooks({net[0]: print, "no module": print}):
        pass
    assert not net[0]._forward_hooks
