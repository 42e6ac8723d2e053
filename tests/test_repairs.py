from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import reference
from conftest import Cifar10
from networks import Residual, small_net
from repairability import (
    CalibrationSet,
    InputError,
    allocate,
    create_model,
    make_masks,
    prunable_layers,
    repair_model,
)
from repairability.masks import apply_masks_
from repairability.network.discover import layers_named
from repairability.repairs import REPAIRS, BatchNormRepair, ChannelRepair, RepairContext, get_repair, measure_statistics

IMAGES = torch.randn(200, 3, 9, 9, generator=torch.Generator().manual_seed(2))


def calibration(count: int = 40, batch_size: int = 64) -> CalibrationSet:
    return CalibrationSet(IMAGES, count=count, batch_size=batch_size)


def pruned_copy(model: nn.Module, sparsity: float = 0.7, rule: str = "uniform") -> nn.Module:
    pruned = copy.deepcopy(model)
    apply_masks_(pruned, make_masks(model, allocate(model, sparsity=sparsity, rule=rule)))
    return pruned


@pytest.fixture
def dense() -> nn.Module:
    return create_model("networks:Residual").double()


# --- CR ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", ["median", "mean"])
def test_gamma_is_the_formula(tau: str) -> None:
    a, b = torch.randn(20, 5, 3, dtype=torch.float64), torch.randn(20, 5, 3, dtype=torch.float64) * 0.1
    b[:, 2] = 0.5  # constant: an empty filter with a bias
    b[:, 4] *= 1e-7  # alive, but hardly
    repair = ChannelRepair(shrinkage=0.3, tau=tau)
    var_p = b.var((0, 2), unbiased=False)
    var_p[2] = 0
    gamma = repair.gamma(a.var((0, 2), unbiased=False), var_p)
    assert gamma.tolist() == pytest.approx(reference.channel_scales(a, b, 0.3, tau))
    assert gamma[2] == 1


def test_typical_channels_keep_91_percent_of_their_correction() -> None:
    gamma = ChannelRepair().gamma(torch.full((3,), 4.0).double(), torch.ones(3).double())
    assert torch.log(gamma) / torch.log(torch.tensor(2.0)) == pytest.approx(1 / 1.1, rel=1e-6)


@pytest.mark.parametrize("tau", ["median", "mean", 0.0, 1.0])
def test_empty_layers_never_yield_nan(tau: Any) -> None:
    repair = ChannelRepair(tau=tau)
    var = torch.tensor([1.0, 2.0, 3.0]).double()
    assert repair.gamma(var, torch.zeros(3).double()).tolist() == [1, 1, 1]
    assert repair.gamma(torch.zeros(3).double(), torch.zeros(3).double()).tolist() == [1, 1, 1]
    most_empty = repair.gamma(var, torch.tensor([0.0, 0.0, 1e-30]).double())
    assert most_empty.isfinite().all()
    assert most_empty[:2].tolist() == [1, 1]


def literal_sequential(dense: nn.Module, pruned: nn.Module, x: Tensor, order: list[str]) -> nn.Module:
    """Layer by layer on a copy, with its own forward passes."""
    repaired = copy.deepcopy(pruned)
    for name in order:
        outputs = [reference.outputs_of(net, name, x) for net in (dense, repaired)]
        gammas = torch.tensor(reference.channel_scales(*outputs, 0.1), dtype=torch.float64)
        with torch.no_grad():
            weight = repaired.get_parameter(f"{name}.weight")
            weight.mul_(gammas.view(-1, *[1] * (weight.dim() - 1)))
    return repaired


@pytest.mark.parametrize("batch_size", [64, 7])
def test_sequential_cr_is_layer_by_layer(dense: nn.Module, batch_size: int) -> None:
    """In one pass (one batch), and by a pass per layer (several batches): the same scales."""
    pruned = pruned_copy(dense)
    expected = literal_sequential(dense, pruned, IMAGES[:40].double(), ["conv1", "depthwise", "shortcut", "conv2"])
    found = repair_model(dense, pruned, calibration(batch_size=batch_size), repair="cr")
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[key], value, rtol=1e-8, atol=1e-12)


def test_a_module_called_twice_is_scaled_once_from_pooled_statistics() -> None:
    dense = create_model("networks:Twice").double()
    pruned = copy.deepcopy(dense)
    reference.prune_layer_(pruned, "body", 0.7)
    found = repair_model(dense, pruned, calibration(), repair="cr")
    stats = [measure_statistics(net, layers_named(net, ["body"]), calibration())["body"] for net in (dense, pruned)]
    gamma = ChannelRepair().gamma(stats[0].var, stats[1].var)
    expected = pruned.get_parameter("body.weight") * gamma.view(-1, 1, 1, 1)
    torch.testing.assert_close(found.get_parameter("body.weight"), expected)


def test_a_weight_of_two_modules_is_repaired_too() -> None:
    dense = create_model("networks:Shared").double()
    pruned = copy.deepcopy(dense)
    reference.prune_layer_(pruned, "b", 0.7)
    found = repair_model(dense, pruned, CalibrationSet(torch.randn(20, 3, 12, 12), 20), repair="reconstruct")
    assert found.get_parameter("b.weight") is found.get_submodule("b_tied").weight
    assert torch.equal(found.get_parameter("b.weight") == 0, pruned.get_parameter("b.weight") == 0)
    assert not torch.equal(found.get_parameter("b.weight"), pruned.get_parameter("b.weight"))


def test_simultaneous_measures_the_unrepaired_network(dense: nn.Module) -> None:
    pruned = pruned_copy(dense)
    found = repair_model(dense, pruned, calibration(), repair="cr-simultaneous")
    for name in ("conv1", "conv2"):
        outputs = [reference.outputs_of(net, name, IMAGES[:40].double()) for net in (dense, pruned)]
        gammas = torch.tensor(reference.channel_scales(*outputs, 0.1), dtype=torch.float64).view(-1, 1, 1, 1)
        torch.testing.assert_close(
            found.get_parameter(f"{name}.weight"), pruned.get_parameter(f"{name}.weight") * gammas
        )


def test_linear_layers_are_repaired_too(dense: nn.Module) -> None:
    pruned = copy.deepcopy(dense)
    reference.prune_layer_(pruned, "hidden", 0.6)
    expected = literal_sequential(dense, pruned, IMAGES[:40].double(), ["hidden"])
    found = repair_model(dense, pruned, calibration(), repair="cr")
    torch.testing.assert_close(found.get_parameter("hidden.weight"), expected.get_parameter("hidden.weight"))


@pytest.mark.parametrize("repair", [name for name, repair in REPAIRS.items() if not repair.needs_gradients])
def test_zeros_stay_zero_and_only_pruned_layers_are_scaled(repair: str, dense: nn.Module) -> None:
    pruned = copy.deepcopy(dense)
    reference.prune_layer_(pruned, "conv2", 0.7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = repair_model(dense, pruned, calibration(), repair=repair)
    zeros = pruned.get_parameter("conv2.weight") == 0
    assert (found.get_parameter("conv2.weight")[zeros] == 0).all()
    if repair in ("reconstruct-all", "rectified"):  # which refit the others too
        return
    for name in ("stem", "conv1", "depthwise", "shortcut", "hidden"):
        assert torch.equal(found.get_parameter(f"{name}.weight"), dense.get_parameter(f"{name}.weight"))
    if repair not in ("affine", "affine-moments", "reconstruct"):  # which move the mean through the bias
        assert torch.equal(found.get_parameter("conv2.bias"), dense.get_parameter("conv2.bias"))


# --- BN ------------------------------------------------------------------------------------------------------------


def literal_recalibration(model: nn.Module, batches: list[Tensor], momentum: float | None) -> nn.Module:
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            if momentum is None:
                module.reset_running_stats()
            module.momentum = momentum
            module.train()
    with torch.no_grad():
        for batch in batches:
            model(batch)
    return model.eval()


@pytest.mark.parametrize("momentum", [0.1, 0.3, None])
def test_recalibration_is_pytorchs_own(momentum: float | None, dense: nn.Module) -> None:
    pruned = pruned_copy(dense)
    found = repair_model(dense, pruned, calibration(), repair=BatchNormRepair(4, 40, momentum))
    expected = literal_recalibration(pruned, list(IMAGES[40:].double().split(40)), momentum)
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[key], value)
    assert [m.momentum for m in found.modules() if isinstance(m, nn.BatchNorm2d)] == [0.1] * 5
    assert not any(m.training for m in found.modules())


class TwiceNormed(nn.Module):
    """One norm at two places; random numbers where wanted; counts its passes."""

    passes = 0

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.norm, self.noise = nn.BatchNorm2d(3), noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        TwiceNormed.passes += 1
        x = self.norm(self.first(x))
        x = self.norm(self.second(x)) if not self.noise else self.norm(self.second(x + torch.randn_like(x)))
        return x.mean((2, 3))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize(("size", "distinct"), [(40, 4), (64, 5), (160, 1)])
def test_a_batch_that_comes_again_runs_once_and_moves_the_norms_again(
    momentum: float | None, size: int, distinct: int
) -> None:
    torch.manual_seed(0)
    net = TwiceNormed(0.0).double()
    images = IMAGES[40:].double()
    batches = [images[torch.arange(i * size, (i + 1) * size) % len(images)] for i in range(11)]
    expected = literal_recalibration(net, batches, momentum)
    TwiceNormed.passes = 0
    found = copy.deepcopy(net)
    BatchNormRepair(11, size, momentum)(RepairContext(found, prunable_layers(net), net, calibration()))
    assert TwiceNormed.passes == distinct
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[key], value, rtol=1e-12, atol=1e-12)
    assert found.norm.momentum == 0.1
    assert not found.norm._forward_hooks


def test_where_random_numbers_are_drawn_every_batch_runs() -> None:
    torch.manual_seed(0)
    net = TwiceNormed(1.0).double()
    TwiceNormed.passes = 0
    BatchNormRepair(11, 40)(RepairContext(copy.deepcopy(net), prunable_layers(net), net, calibration()))
    assert TwiceNormed.passes == 11


def test_what_remains_of_the_old_statistics() -> None:
    assert BatchNormRepair().remaining == pytest.approx(0.1216, abs=1e-4)
    assert BatchNormRepair(momentum=None).remaining == 0


def test_few_images_cycle_and_say_so(dense: nn.Module) -> None:
    with pytest.warns(UserWarning, match="wants 2560 images; it cycles over the 160 there are"):
        repair_model(dense, pruned_copy(dense), calibration(), repair="bn")


def test_a_network_without_batchnorm_says_so() -> None:
    net = small_net()
    with pytest.warns(UserWarning, match="Sequential has no BatchNorm: repair 'bn' has nothing to recalibrate"):
        repair_model(net, pruned_copy(net), calibration(), repair="bn")


def test_dropout_stays_off() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.9), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    repair = BatchNormRepair(2, 20)
    first, second = (repair_model(net, pruned_copy(net), calibration(), repair=repair) for _ in range(2))
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])


# --- laws ----------------------------------------------------------------------------------------------------------


def test_repair_at_sparsity_zero_is_the_identity(dense: nn.Module) -> None:
    layers = prunable_layers(dense)
    statistics = measure_statistics(dense, layers, calibration())
    for name in ("none", "cr", "cr-simultaneous"):
        own = copy.deepcopy(dense)
        get_repair(name)(RepairContext(own, prunable_layers(own), dense, calibration(), statistics))
        for key, value in dense.state_dict().items():
            torch.testing.assert_close(own.state_dict()[key], value, rtol=1e-9, atol=0)


class Plain(nn.Module):
    """A BatchNorm after each convolution, no biases: where the law of method.md, section 5, holds."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o, eps=1e-12), nn.ReLU())
                for i, o in ((3, 8), (8, 8), (8, 8))
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).mean((2, 3))


def test_with_cumulative_statistics_bn_undoes_cr() -> None:
    net = create_model("test_repairs:Plain").double()
    pruned = pruned_copy(net, 0.8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with_cr, without = (
            repair_model(net, pruned, calibration(), repair=r) for r in ("cr+bn-cumulative", "bn-cumulative")
        )
    assert not torch.allclose(with_cr.get_parameter("body.1.0.weight"), without.get_parameter("body.1.0.weight"))
    torch.testing.assert_close(with_cr(IMAGES.double()), without(IMAGES.double()), rtol=1e-6, atol=1e-8)


# --- names, callables, what cannot be done -------------------------------------------------------------------------


def test_a_callable_is_a_repair_and_gets_our_copy(dense: nn.Module) -> None:
    seen: list[Any] = []

    def shift_(context: RepairContext) -> None:
        seen.extend([context.model is dense, context.layers.names, sorted(context.statistics)])
        assert context.dense is dense
        with torch.no_grad():
            context.model.get_parameter("conv2.bias").add_(1)

    pruned = pruned_copy(dense)
    found = repair_model(dense, pruned, calibration(), repair=shift_)
    assert seen[0] is False
    assert set(seen[1]) == {"conv1", "depthwise", "shortcut", "conv2"} == set(seen[2])
    torch.testing.assert_close(found.get_parameter("conv2.bias"), pruned.get_parameter("conv2.bias") + 1)


def test_chains_by_name() -> None:
    assert get_repair("cr+bn").name == "cr+bn"
    assert get_repair(" cr + bn-cumulative ").name == "cr+bn-cumulative"
    assert all(get_repair(name).name == name for name in REPAIRS)
    assert get_repair("reconstruct@256").name == "reconstruct@256"
    by_hand = ChannelRepair(shrinkage=0.5, tau=2.0, sequential=False)
    assert by_hand.name == "ChannelRepair(shrinkage=0.5, tau=2.0, sequential=False)"
    assert by_hand == ChannelRepair(0.5, 2.0, False, name="mine")  # a name is no setting


def test_what_a_repair_needs_and_can_is_declared() -> None:
    names = [*REPAIRS, "cr+bn", "reconstruct+bn", "bn+reconstruct"]
    repairs = {name: get_repair(name) for name in names}
    assert [x for x in names if repairs[x].needs_statistics] == [*(x for x in REPAIRS if x.startswith("cr")), "cr+bn"]
    fitting = ["reconstruct", "reconstruct-all", "rectified", "reconstruct+bn"]
    assert [x for x in names if repairs[x].chooses_masks] == fitting
    assert [x for x in names if repairs[x].fit is not None] == fitting
    assert [x for x in names if repairs[x].needs_gradients] == ["match", "match-flips", "match-crops"]
    with pytest.raises(
        InputError,
        match="unknown repair 'xyz'; known: affine, affine-moments, bn, bn-cumulative, bn-short, cr, cr-mean",
    ):
        get_repair("cr+xyz")


def test_clear_errors(dense: nn.Module) -> None:
    with pytest.raises(InputError, match="tau must be a number or one of median, mean, not 'mode'"):
        ChannelRepair(tau="mode")
    with pytest.raises(InputError, match="must not be negative"):
        ChannelRepair(shrinkage=-1)
    with pytest.raises(InputError, match="lost no weights"):
        repair_model(dense, copy.deepcopy(dense), calibration())
    with pytest.raises(InputError, match="only one of them has 0"):
        repair_model(dense, small_net(), calibration())
    with pytest.raises(InputError, match=r"layer 'head' has shape \(5, 7\) here and \(6, 7\) in the other"):
        repair_model(dense, Residual(6).double(), calibration())


# --- the real network ----------------------------------------------------------------------------------------------


def test_the_real_resnet20_behaves_as_the_theory_says(resnet20: nn.Module, cifar10: Cifar10) -> None:
    at80, at90 = pruned_copy(resnet20, 0.8, "erk"), pruned_copy(resnet20, 0.9, "erk")

    def recovered(pruned: nn.Module, repair: str, seed: int = 0) -> float:
        order = torch.randperm(len(cifar10.train), generator=torch.Generator().manual_seed(seed))
        return cifar10.accuracy(repair_model(resnet20, pruned, cifar10.train[order], repair=repair))

    assert recovered(at80, "cr") > recovered(at80, "cr-simultaneous") + 0.1  # sequential wins before BN
    with_cr, without = (sum(recovered(at90, r, seed) for seed in range(3)) / 3 for r in ("cr+bn", "bn"))
    assert with_cr > without
    # With cumulative statistics BN undoes CR up to BN's eps: the accuracies can differ by a few images at most.
    assert abs(recovered(at90, "cr+bn-cumulative") - recovered(at90, "bn-cumulative")) <= 0.005
