"""The affine repair: joint, and as the diagnostics see it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import reference
from repairability import (
    CalibrationSet,
    InputError,
    allocate,
    create_model,
    diagnose,
    make_masks,
    prunable_layers,
    prune,
    repair_model,
)
from repairability.algebra.sums import ChannelSums
from repairability.masks import apply_masks_
from repairability.network.trace import trace
from repairability.repairs import AffineRepair, ChannelRepair, RepairContext, Response
from test_diagnostics import NORMS
from test_sacred import FAULTS, complete_state, failing, same, users_model

IMAGES = torch.randn(300, 3, 9, 9, generator=torch.Generator().manual_seed(2))
EVERY: dict[str, Any] = {"types": ("conv", "linear"), "skip": ("@first",)}
MATCHES = ["least_squares", "moments"]
NAMES = ["affine", "affine-moments"]


pytestmark = pytest.mark.usefixtures("quiet")


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    return create_model("networks:Residual", seed=3).to(dtype).eval()


def bare() -> nn.Module:
    """A layer with neither bias nor norm between two that have one."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 7, 3, bias=False), nn.ReLU(), nn.Conv2d(7, 5, 1)
    ).double()


def calibration(count: int = 150) -> CalibrationSet:
    """More images than a batch of the walk."""
    return CalibrationSet(IMAGES, count=count)


def pruned_copy(model: nn.Module, sparsity: float = 0.6) -> nn.Module:
    plan = allocate(prunable_layers(model, **EVERY), sparsity=sparsity, rule="uniform")
    pruned = copy.deepcopy(model)
    apply_masks_(pruned, make_masks(model, plan))
    return pruned


def order_of(model: nn.Module) -> list[str]:
    return list(trace(model, prunable_layers(model, **EVERY), IMAGES.to(next(model.parameters()).dtype)).order)


# --- the joint repair ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("match", MATCHES)
def test_equals_the_literal_one(match: str) -> None:
    """Every layer of the small residual network: groups, depthwise, biases, norms, a Linear, a shortcut."""
    dense = network()
    pruned = pruned_copy(dense)
    expected = reference.affine(dense, pruned, order_of(pruned), IMAGES[:150].double(), match)
    found = repair_model(dense, pruned, calibration(), repair=AffineRepair(match))
    for name, tensor in found.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], atol=1e-9, rtol=1e-9, msg=name)


def test_the_shift_goes_where_there_is_a_place_for_it() -> None:
    dense = network()
    pruned = pruned_copy(dense)
    found = repair_model(dense, pruned, calibration(), repair="affine").state_dict()
    changed = {name for name, tensor in pruned.state_dict().items() if not torch.equal(tensor, found[name])}
    assert changed == {
        *(f"{layer}.{part}" for layer in ("conv1", "conv2", "hidden", "head") for part in ("weight", "bias")),
        *("depthwise.weight", "bn2.running_mean", "shortcut.weight", "bn3.running_mean"),
    }


@pytest.mark.parametrize("match", MATCHES)
def test_where_there_is_no_place_the_best_scale(match: str) -> None:
    dense = bare()
    pruned = copy.deepcopy(dense)
    reference.prune_layer_(pruned, "2", 0.7)
    a, b = (reference.outputs_of(net, "2", IMAGES[:150].double()) for net in (dense, pruned))
    expected = torch.tensor([g for g, _ in reference.affine_of(a, b, match, shift=False)], dtype=torch.float64)
    found = repair_model(dense, pruned, calibration(), repair=AffineRepair(match))
    torch.testing.assert_close(
        found.get_parameter("2.weight"), pruned.get_parameter("2.weight") * expected.view(-1, 1, 1, 1)
    )


def test_moments_match_at_every_layer() -> None:
    """Means everywhere, variances wherever a filter still varies: some of its inputs may be dead."""
    dense, alive = network(), []
    found = repair_model(dense, pruned_copy(dense), calibration(), repair="affine-moments")
    for name in order_of(dense):
        a, y = (reference.outputs_of(net, name, IMAGES[:150].double()) for net in (dense, found))
        if name in NORMS:  # a shift that lies in the norm
            means = [net.get_submodule(NORMS[name]).running_mean for net in (dense, found)]
            y = y + (means[0] - means[1])[:, None]
        torch.testing.assert_close(y.mean((0, 2)), a.mean((0, 2)), rtol=1e-9, atol=1e-9, msg=name)
        live = y.var((0, 2)) > 1e-20
        torch.testing.assert_close(y.var((0, 2))[live], a.var((0, 2))[live], rtol=1e-9, atol=0, msg=name)
        alive += live.tolist()
    assert sum(alive) > 0.9 * len(alive)


def test_a_layer_alone_is_best_off_with_least_squares() -> None:
    dense = network()
    for name in ("conv1", "conv2", "hidden"):
        pruned = copy.deepcopy(dense)
        reference.prune_layer_(pruned, name, 0.7)
        a = reference.outputs_of(dense, name, IMAGES[:150].double())
        repaired = [repair_model(dense, pruned, calibration(), repair=r) for r in ("none", "cr", "affine-moments")]
        best = repair_model(dense, pruned, calibration(), repair="affine")
        errors = [
            (a - reference.outputs_of(net, name, IMAGES[:150].double())).square().mean((0, 2)) for net in repaired
        ]
        ours = (a - reference.outputs_of(best, name, IMAGES[:150].double())).square().mean((0, 2))
        assert all((ours <= other + 1e-12).all() for other in errors)
        assert all(ours.sum() < 0.99 * other.sum() for other in errors)


@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize("build", [network, bare])
def test_nothing_pruned_nothing_changed(match: str, build: Any) -> None:
    dense = build()
    own = copy.deepcopy(dense)
    AffineRepair(match)(RepairContext(own, prunable_layers(own, **EVERY), dense, calibration()))
    for name, tensor in own.state_dict().items():
        torch.testing.assert_close(tensor, dense.state_dict()[name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_empty_filters_and_constant_channels(match: str, dtype: torch.dtype) -> None:
    dense = network(dtype)
    with torch.no_grad():
        dense.get_parameter("conv2.weight")[1] = 0  # constant in the dense network, too
        dense.get_parameter("shortcut.weight")[2] *= 1e-30  # alive, but hardly
    pruned = pruned_copy(dense, 0.5)
    with torch.no_grad():
        for name in ("conv1", "depthwise", "shortcut", "conv2", "hidden"):
            pruned.get_parameter(f"{name}.weight")[0] = 0
    found = repair_model(dense, pruned, calibration(), repair=AffineRepair(match))
    assert all(tensor.isfinite().all() for tensor in found.state_dict().values())
    for name in ("conv1", "depthwise", "shortcut", "conv2", "hidden"):
        weight, before = (net.get_parameter(f"{name}.weight") for net in (found, pruned))
        assert (weight[before == 0] == 0).all()
    mean = reference.outputs_of(dense, "conv2", IMAGES[:150].to(dtype))[:, 0].mean()
    assert float(found.get_parameter("conv2.bias")[0]) == pytest.approx(float(mean), rel=1e-2)  # all it can give
    constant = dense.get_parameter("conv2.bias")[1]
    torch.testing.assert_close(found.get_parameter("conv2.bias")[1], constant, rtol=1e-2, atol=1e-6)


def test_a_module_called_twice_is_fitted_once_to_both_calls() -> None:
    dense = create_model("networks:Twice").double().eval()
    pruned = copy.deepcopy(dense)
    reference.prune_layer_(pruned, "body", 0.7)

    def calls(model: nn.Module) -> Tensor:
        found: list[Tensor] = []
        handle = model.get_submodule("body").register_forward_hook(lambda *args: found.append(args[2].flatten(2)))
        with torch.no_grad():
            model(IMAGES[:150].double())
        handle.remove()
        return torch.cat(found)

    lines = reference.affine_of(calls(dense), calls(pruned), "least_squares", shift=True)
    expected = copy.deepcopy(pruned)
    reference.affine_layer_(expected, "body", lines)
    found = repair_model(dense, pruned, calibration(), repair="affine")
    for name, tensor in found.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], msg=name)


def test_a_norm_that_others_use_too_is_left_alone() -> None:
    """Moving its mean would move what the other layer gives; even one that lost no weight."""

    class SharedNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 3, bias=False), nn.Conv2d(3, 3, 3, bias=False)
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(self.b(self.norm(self.a(x)).relu()))
            return out

    dense = SharedNorm().double().eval()
    pruned = copy.deepcopy(dense)
    reference.prune_layer_(pruned, "b", 0.5)
    found = repair_model(dense, pruned, calibration(), repair="affine")
    assert torch.equal(found.get_buffer("norm.running_mean"), dense.get_buffer("norm.running_mean"))
    assert not torch.equal(found.get_parameter("b.weight"), pruned.get_parameter("b.weight"))


def test_chains_and_the_whole_way() -> None:
    dense = network(torch.float32)
    for repair in ("affine+bn-short", "cr+affine", "affine-moments+bn-short"):
        result = prune(dense, calibration(), sparsity=0.7, rule="rr", score="magnitude", repair=repair)
        assert result.repair == repair
    pruned = pruned_copy(dense)
    errors = [
        (repair_model(dense, pruned, calibration(), repair=r)(IMAGES) - dense(IMAGES)).square().mean()
        for r in ("affine", "none")
    ]
    assert errors[0] < 0.5 * errors[1]


# --- the formula ---------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scale=st.floats(-3, 3).filter(lambda x: x == 0 or abs(x) > 1e-3),  # below a millionth millionth it is empty
    offset=st.floats(-5, 5),
    shifts=st.booleans(),
    noise=st.sampled_from([0.0, 0.1, 10.0]),
)
def test_least_squares_is_never_worse_than_the_others(
    seed: int, scale: float, offset: float, shifts: bool, noise: float
) -> None:
    """In pooled error: than nothing, than moments, than CR, than itself after CR, than any scale or shift near it."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(12, 3, 4, generator=generator, dtype=torch.float64) + offset
    b = scale * a + noise * torch.randn(12, 3, 4, generator=generator, dtype=torch.float64)
    b[:, 2] = 0
    sums = ChannelSums(1, 3)
    sums.update(a, b[None])
    bias = torch.ones(3, dtype=torch.float64) if shifts else torch.zeros(3, dtype=torch.float64)
    start = Response.begin(sums, bias, None, shifts=shifts)

    def error(end: Response) -> Tensor:
        return (a - end.gain[0][:, None] * b - end.offset[0][:, None]).square().mean((0, 2))

    best = AffineRepair().respond(start)
    after_cr = AffineRepair().respond(ChannelRepair().respond(start))
    tolerance = 1e-9 * (1 + error(start))
    for other in (start, AffineRepair("moments").respond(start), ChannelRepair().respond(start), after_cr):
        assert (error(best) <= error(other) + tolerance).all()
    torch.testing.assert_close(error(after_cr), error(best), rtol=1e-6, atol=1e-8)  # CR before it changes nothing
    if not shifts:
        assert (best.offset == 0).all()


@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize("shifts", [True, False])
def test_nothing_to_scale(match: str, shifts: bool) -> None:
    """Channels: both zero, dense zero, pruned zero, pruned constant, both constant, pruned next to nothing."""
    wave = torch.linspace(-1, 1, 20, dtype=torch.float64).view(4, 1, 5) + 0.3
    zero, one = torch.zeros_like(wave), torch.ones_like(wave)
    a = torch.cat([zero, zero, wave, wave, 2 * one, wave], 1)
    b = torch.cat([zero, wave, zero, one, one, 1e-200 * wave], 1)
    sums = ChannelSums(1, 6)
    sums.update(a, b[None])
    end = AffineRepair(match).respond(Response.begin(sums, torch.zeros(6).double(), None, shifts=shifts))
    gain, offset = end.gain[0].tolist(), end.offset[0].tolist()
    if shifts:
        assert gain == [1, 0, 1, 1, 1, 1]
        assert offset == pytest.approx([0, 0, 0.3, -0.7, 1, 0.3])
    else:
        square = float(wave.square().mean())
        assert gain == pytest.approx([1, 0, 1, 0.3 if match == "least_squares" else square**0.5, 2, 1])
        assert offset == [0] * 6


# --- as the diagnostics see it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("repair", [*NAMES, "affine+bn", "affine-moments+bn", "cr+affine"])
@pytest.mark.parametrize("observe", ["layer", "norm"])
def test_diagnosis_equals_the_literal_one(repair: str, observe: str) -> None:
    model = network()
    found = diagnose(model, calibration(24), grid=(0.3, 0.7, 0.95), repair=repair, observe=observe)
    for layer in found.rr:
        norm = NORMS[layer] if observe == "norm" else None
        for k, s in enumerate((0.3, 0.7, 0.95)):
            expected = reference.diagnose(model, IMAGES[:24].double(), layer, s, repair=repair, norm=norm)
            got = (found.raw[layer][k], found.residual[layer][k], found.rr[layer][k])
            np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=f"{layer} at {s}")


@pytest.mark.parametrize("repair", NAMES)
def test_diagnosis_of_a_layer_without_a_place_for_a_shift(repair: str) -> None:
    model = bare()
    found = diagnose(model, calibration(24), grid=(0.5, 0.9), repair=repair)
    for layer, shift in (("2", False), ("4", True)):
        for k, s in enumerate((0.5, 0.9)):
            expected = reference.diagnose(model, IMAGES[:24].double(), layer, s, repair=repair, shift=shift)
            got = (found.raw[layer][k], found.residual[layer][k], found.rr[layer][k])
            np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=f"{layer} at {s}")


@pytest.mark.parametrize("repair", NAMES)
def test_the_diagnosis_is_of_what_the_joint_repair_does(repair: str) -> None:
    """To a network that lost weights in this layer alone, observed behind its norm."""
    model = network()
    found = diagnose(model, calibration(24), grid=(0.8,), repair=repair, observe="norm")
    for layer, norm in NORMS.items():
        pruned = copy.deepcopy(model)
        reference.prune_layer_(pruned, layer, 0.8)
        mended = repair_model(model, pruned, calibration(24), repair=repair)
        outputs = [reference.outputs_of(net, norm, IMAGES[:24].double()) for net in (model, mended)]
        assert found.residual[layer][0] == pytest.approx(reference.distance(*outputs), rel=1e-6)


@pytest.mark.parametrize("repair", NAMES)
def test_diagnosed_empty_filters(repair: str) -> None:
    model = network()
    with torch.no_grad():
        model.get_parameter("conv2.weight")[1:] *= 1e-6  # at 95 % nothing of these filters is left
        model.get_parameter("shortcut.weight").zero_()
    for observe in ("layer", "norm"):
        found = diagnose(model, calibration(24), repair=repair, observe=observe)
        assert all(np.isfinite(found.rr[layer]).all() for layer in found.rr)
        assert (found.residual["shortcut"] < 1e-12).all()


# --- what is sacred, what cannot be done -----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, *FAULTS], ids=lambda f: type(f).__name__)
@pytest.mark.parametrize("at", [0, 3])
def test_the_users_models_are_as_before(at: int, fault: BaseException | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = users_model()
    pruned = pruned_copy(model)
    before = [complete_state(net) for net in (model, pruned)]
    for method in ("update", "cross_moment"):
        if fault is None:
            repair_model(model, pruned, calibration(), repair="affine")
            diagnose(model, calibration(24), repair="affine")
        else:
            with monkeypatch.context() as patch:
                patch.setattr(ChannelSums, method, failing(getattr(ChannelSums, method), at, fault))
                with pytest.raises(type(fault)):
                    repair_model(model, pruned, calibration(), repair="affine")
        assert all(same(complete_state(net), was) for net, was in zip((model, pruned), before, strict=True))


def test_clear_errors() -> None:
    with pytest.raises(InputError, match="match must be one of least_squares, moments, not 'mean'"):
        AffineRepair("mean")


class Raised(nn.Module):
    """A bias that is computed: no shift can be written into it, and a scaled filter leaves it as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer, self.bias = (
            nn.Conv2d(3, 6, 3),
            nn.Conv2d(6, 7, 3, bias=False),
            nn.Parameter(torch.ones(7)),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = nn.functional.conv2d(self.stem(x).relu(), self.layer.weight, 2 * self.bias + 3)
        return y


@pytest.mark.parametrize("match", MATCHES)
def test_a_bias_that_is_computed_is_no_part_of_the_scale(match: str) -> None:
    """The best scale of what the weights give; and the diagnosis knows."""
    dense = Raised().double()
    pruned = copy.deepcopy(dense)
    reference.prune_layer_(pruned, "layer", 0.7)
    inputs = dense.stem(IMAGES[:150].double()).relu().detach()
    a, b = (nn.functional.conv2d(inputs, net.layer.weight).detach() for net in (dense, pruned))
    scales = torch.tensor([g for g, _ in reference.affine_of(a, b, match, shift=False)], dtype=torch.float64)
    found = repair_model(dense, pruned, calibration(), repair=AffineRepair(match))
    torch.testing.assert_close(found.layer.weight, pruned.layer.weight * scales.view(-1, 1, 1, 1))
    outputs = [net(IMAGES[:150].double()).detach() for net in (dense, found)]
    curves = diagnose(dense, calibration(), grid=(0.7,), repair=AffineRepair(match))
    assert curves.residual["layer"][0] == pytest.approx(reference.distance(*outputs), rel=1e-6)
