from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from networks import Residual, small_net
from repairability import InputError
from repairability._torch import copy_of, evaluating, masked_names, recalibrating_, seeded, unwrapped, workers
from test_sacred import Counting, complete_state, same, users_model

IMAGES = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(0))


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


def test_the_network_that_runs_is_in_eval_mode_and_the_model_is_not_touched() -> None:
    net = small_net()
    net.train()
    net[2].eval()
    with pytest.raises(Interrupted), evaluating(net) as network:
        assert network is not net
        assert not any(m.training for m in network.modules())
        assert [m.training for m in net] == [True, True, False, True, True, True, True, True]
        assert not torch.is_grad_enabled()
        raise Interrupted
    assert [m.training for m in net] == [True, True, False, True, True, True, True, True]
    assert torch.is_grad_enabled()


def test_it_shares_the_parameters_and_nothing_else() -> None:
    model = users_model()
    before = complete_state(model)
    with evaluating(model) as network:
        theirs, ours = dict(model.named_parameters()), dict(network.named_parameters())
        assert theirs.keys() == ours.keys()
        assert all(theirs[name] is ours[name] for name in theirs)
        network(IMAGES)
        network.register_forward_hook(lambda *_: None)
        assert all(x.data_ptr() != y.data_ptr() for x, y in zip(model.buffers(), network.buffers(), strict=True))
    assert same(complete_state(model), before)


def test_the_statistics_of_our_copy_can_be_written() -> None:
    ours, expected = Residual(), Residual()
    expected.load_state_dict(ours.state_dict())
    ours.add_module("counting", Counting())
    with evaluating(ours, writing=True) as network, torch.no_grad():
        network.get_buffer("bn1.running_mean").fill_(3.0)
        network.get_buffer("counting.calls").fill_(3.0)
        network.get_parameter("conv1.weight").fill_(2.0)
    assert bool((ours.bn1.running_mean == 3).all())
    assert bool((ours.conv1.weight == 2).all())
    assert float(ours.get_buffer("counting.calls")) == 0  # a buffer of anybody else is not ours to write
    with recalibrating_(ours, 0.1) as network:
        network(IMAGES)
    assert not torch.equal(ours.bn1.running_mean, torch.full((12,), 3.0))
    assert torch.equal(ours.get_parameter("bn1.weight"), expected.get_parameter("bn1.weight"))


def test_random_state_returns() -> None:
    before = torch.get_rng_state()
    with evaluating(nn.Dropout()):
        torch.rand(3)
    with seeded(5):
        first = torch.rand(3)
    with seeded(5):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_random_state_returns_behind_the_last_of_several() -> None:
    net, other = small_net(), small_net()
    before = torch.get_rng_state()
    with evaluating(net):
        torch.rand(3)
        with evaluating(other):
            torch.rand(3)
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_callers_autocast_does_not_reach_the_network() -> None:
    net = small_net()
    with torch.autocast("cpu", torch.bfloat16), evaluating(net) as network:
        assert network(IMAGES).dtype == torch.float32


def test_hooks_of_the_user_run_in_the_shadow_and_stay_where_they_are() -> None:
    net, seen = small_net(), []
    handle = net[0].register_forward_hook(lambda module, *_: seen.append(module))
    with evaluating(net) as network:
        network(IMAGES)
    assert len(seen) == 1
    assert seen[0] is not net[0]
    handle.remove()
    assert not net[0]._forward_hooks


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_wrappers_are_taken_off() -> None:
    net = small_net()
    assert unwrapped(nn.DataParallel(net)) is net
    assert unwrapped(torch.compile(net)) is net  # type: ignore[arg-type]
    assert unwrapped(torch.compile(nn.DataParallel(net))) is net  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is TorchScript, whose code is fixed"):
        unwrapped(torch.jit.trace(net.eval(), IMAGES))
    with pytest.raises(InputError, match="a model must be a torch.nn.Module, not int"):
        unwrapped(3)  # type: ignore[arg-type]


def test_masks_of_torch_become_zeros_of_our_copy() -> None:
    net = small_net()
    prune.l1_unstructured(net[2], "weight", 0.5)
    names = list(net.state_dict())
    assert masked_names(net) == ["2"]
    ours = copy_of(net)
    assert masked_names(ours) == []
    assert torch.equal(ours.get_parameter("2.weight"), net[2].weight)
    with evaluating(net) as network, torch.no_grad():
        assert torch.equal(network(IMAGES), net.eval()(IMAGES))
    assert list(net.state_dict()) == names
    assert masked_names(net) == ["2"]


def test_a_weight_that_a_hook_computes_can_be_copied() -> None:
    net = small_net()
    nn.utils.parametrizations.weight_norm(net[4])
    with pytest.warns(FutureWarning, match="deprecated"):
        nn.utils.weight_norm(net[2])
    net(IMAGES)
    with torch.no_grad():
        assert torch.equal(copy_of(net)(IMAGES), net(IMAGES))


def test_what_cannot_be_copied_is_named() -> None:
    class Stubborn(nn.Module):
        def __deepcopy__(self, memo: object) -> Stubborn:
            raise TypeError("one of a kind")

        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(InputError, match="Stubborn cannot be copied: one of a kind"):
        copy_of(Stubborn())


def test_workers_compute_alone_and_nobody_else_does() -> None:
    before = torch.get_num_threads()
    counts: list[int] = []
    try:
        torch.set_num_threads(3)
        with workers(2) as pool:
            counts += pool.map(lambda _: torch.get_num_threads(), range(4))
            counts.append(torch.get_num_threads())
            newcomer = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
            newcomer.start()
            newcomer.join()
        counts.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert counts == [1, 1, 1, 1, 3, 3, 3]


def test_workers_that_fail_leave_the_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), workers(2) as pool:
        list(pool.map(lambda x: 1 // x, range(4)))
    assert torch.get_num_threads() == before
