from __future__ import annotations

import copy
import itertools
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import reference
from conftest import begun_since
from networks import small_net
from repairability import (
    CalibrationSet,
    InputError,
    PruneConfig,
    PruneResult,
    allocate,
    create_model,
    diagnose,
    prunable_layers,
    prune,
    repair_model,
)
from repairability.algebra.least_squares import LeastSquares
from repairability.masks import apply_masks_, make_masks
from repairability.network.trace import trace
from repairability.repairs import REPAIRS, Reconstruction, RepairContext
from repairability.repairs import reconstruct as module
from repairability.repairs import walk as walking
from repairability.repairs.station import Station
from repairability.repairs.walk import walk
from test_sacred import complete_state, same, users_model

IMAGES = torch.randn(300, 3, 9, 9, generator=torch.Generator().manual_seed(2))
EVERY: dict[str, Any] = {"types": ("conv", "linear"), "skip": ("@first",)}


pytestmark = pytest.mark.usefixtures("quiet")


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    return create_model("networks:Residual", seed=3).to(dtype)


def calibration(images: Tensor = IMAGES) -> CalibrationSet:
    return CalibrationSet(images, count=40)


def pruned_copy(model: nn.Module, sparsity: float = 0.6) -> tuple[nn.Module, Any]:
    plan = allocate(prunable_layers(model, **EVERY), sparsity=sparsity, rule="uniform")
    pruned = copy.deepcopy(model)
    apply_masks_(pruned, make_masks(model, plan))
    return pruned, prunable_layers(pruned, **EVERY)


def inputs_of(model: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    """What each of these layers is given for all images, in a plain pass."""
    met: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(lambda _, x, name=name: met.update({name: x[0]}))
        for name in names
    ]
    with torch.no_grad():
        model(IMAGES.double())
    for handle in handles:
        handle.remove()
    return met


# --- the walk ------------------------------------------------------------------------------------------------------


def test_joins_are_found_where_a_branch_is_added_as_it_is() -> None:
    model = create_model("networks:Residual")
    found = trace(model, prunable_layers(model, **EVERY), IMAGES)
    assert {join.layer for join in found.joins.values()} == {"shortcut"}  # reached last of the two branches
    resnet = create_model("resnet20")
    assert len(trace(resnet, prunable_layers(resnet), torch.randn(1, 3, 32, 32)).joins) == 9

    class Changed(nn.Module):
        """The branch is rectified in place before it is added: the same tensor, but not the layer's output any more."""

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.conv = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            out: Tensor = self.conv(x).relu_() + x
            return out

    changed = Changed()
    assert trace(changed, prunable_layers(changed), IMAGES).joins == {}


def test_every_layer_runs_once_per_batch_and_later_layers_see_what_was_written() -> None:
    dense = network()
    repaired, layers = pruned_copy(dense)
    begun, ended = Counter[str](), Counter[str]()
    handles = []
    for model, name in itertools.product((dense, repaired), layers.names):
        layer = model.get_submodule(name)
        handles.append(layer.register_forward_pre_hook(lambda *_, name=name: begun.update([name])))
        handles.append(layer.register_forward_hook(lambda *_, name=name: ended.update([name])))
    seen: dict[str, Tensor] = {}
    for station in walk(dense, repaired, layers, calibration(), images=300):
        seen[station.layer.name] = torch.cat([call.x for call, _, _ in station.pairs])
        with torch.no_grad():
            station.layer.weight.mul_(1.5)
    for handle in handles:
        handle.remove()
    once = 2 * 3 + 1  # two networks, three batches of at most 128 images, and the trace's few images
    assert set(begun.values()) == {once}
    assert ended.pop("head") == 1  # the passes end at their last layer: nobody waits for what comes after
    assert set(ended.values()) == {once}

    repaired.eval()
    met = inputs_of(repaired, layers.names)
    for name, x in seen.items():
        torch.testing.assert_close(x, met[name], msg=name)


def test_a_branch_behind_a_norm_that_others_use_goes_on_as_it_is() -> None:
    class SharedNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
            self.norm = nn.BatchNorm2d(3)
            nn.init.constant_(self.norm.running_mean, 2.0)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.stem(x)).relu()
            x = self.norm(self.a(x)) + x
            out: Tensor = self.b(x)
            return out

    dense = SharedNorm().double().eval()
    pruned, layers = pruned_copy(dense)
    for station in walk(dense, pruned, layers, calibration()):
        seen = torch.cat([call.x for call, _, _ in station.pairs])
    assert station.layer.name == "b"
    torch.testing.assert_close(seen, inputs_of(pruned, ["b"])["b"])


def test_a_walk_that_is_given_up_leaves_no_thread_behind() -> None:
    dense = network()
    before, threads = complete_state(dense), threading.enumerate()
    repaired, layers = pruned_copy(dense)
    steps = walk(dense, repaired, layers, calibration())
    next(steps)
    assert begun_since(threads)
    steps.close()
    assert not begun_since(threads)
    assert same(complete_state(dense), before)


def test_an_error_inside_a_pass_reaches_the_caller() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            if len(x) > 1:
                raise ValueError("too many")
            out: Tensor = self.b(x)
            return out

    model, threads = Failing(), threading.enumerate()
    with pytest.raises(InputError, match="Failing does not take a batch of shape .*too many"):
        list(walk(model, copy.deepcopy(model), prunable_layers(model, skip=()), calibration()))
    assert not begun_since(threads)


# --- against slow obvious least squares ------------------------------------------------------------------------------


def test_equals_literal_least_squares() -> None:
    """Every layer of the small residual network: groups, depthwise, dilation, stride, biases, a Linear, a join."""
    dense = network().eval()
    pruned, layers = pruned_copy(dense)
    images = IMAGES[:70]
    expected = reference.reconstruct(
        dense, pruned, list(trace(pruned, layers, images.double()).order), images.double(), 1e-3
    )
    found = repair_model(dense, pruned, calibration(images), repair=Reconstruction())
    for name, tensor in found.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], atol=1e-7, rtol=1e-6, msg=name)


# --- laws ------------------------------------------------------------------------------------------------------------


def test_nothing_pruned_nothing_changed() -> None:
    dense = network()
    copied = copy.deepcopy(dense)
    Reconstruction()(RepairContext(copied, prunable_layers(copied, **EVERY), dense, calibration()))
    for name, tensor in copied.state_dict().items():
        torch.testing.assert_close(tensor, dense.state_dict()[name], atol=1e-9, rtol=1e-9, msg=name)


class ComputedBias(nn.Module):
    """Biases that are no parameters, in front of a ReLU and of a BatchNorm: no shift can be written into them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(3, 5, 1), nn.Conv2d(5, 6, 3), nn.Conv2d(6, 4, 1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.conv2d(self.stem(x).relu(), self.a.weight, self.a.bias + 2).relu()
        x = self.norm(nn.functional.conv2d(x, self.b.weight, self.b.bias - 3)).relu()
        out: Tensor = self.head(x.mean((2, 3)))
        return out


@pytest.mark.parametrize("repair", [Reconstruction(), Reconstruction(everything=True, budget=1e9, rounds=2)])
def test_a_bias_that_cannot_be_written_stays(repair: Reconstruction) -> None:
    torch.manual_seed(0)
    dense = ComputedBias().double().eval()
    copied = copy.deepcopy(dense)
    repair(RepairContext(copied, prunable_layers(copied, **EVERY), dense, calibration()))
    for name, tensor in copied.state_dict().items():
        torch.testing.assert_close(tensor, dense.state_dict()[name], atol=1e-6, rtol=1e-6, msg=name)
    found = diagnose(
        dense, calibration(), layers=prunable_layers(dense, **EVERY), repair="reconstruct", grid=(0.2, 0.5)
    )
    for name in found.raw:
        assert (found.residual[name] <= found.raw[name]).all()


@pytest.mark.parametrize("score", ["magnitude", "activation", "second_order"])
def test_zeros_stay_zero_and_counts_are_exact(score: str) -> None:
    model = network(torch.float32)
    result = prune(model, calibration(), sparsity=0.7, rule="erk", score=score, repair="reconstruct")
    for layer in prunable_layers(result.model):
        assert int((~result.masks[layer.name]).sum()) == result.allocation.pruned(layer.name)
        assert bool((layer.weight[~result.masks[layer.name]] == 0).all())
        assert torch.isfinite(layer.weight).all()
    assert result.score == score
    assert f"score {score}" in str(result)


def test_a_layers_own_error_never_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """By optimality: error(refitted) + ridge |w - w_dense|^2 <= error(dense weights, masked)."""
    gains = []

    refit = LeastSquares.refitted

    def checked(problem: LeastSquares, support: Tensor, ridge: float) -> Tensor:
        fitted = refit(problem, support, ridge)
        before, after = problem.error(problem.weights * support), problem.error(fitted)
        assert bool((after <= before * (1 + 1e-9) + 1e-12).all())
        gains.append(float(after.sum() / before.sum()))
        return fitted

    monkeypatch.setattr(LeastSquares, "refitted", checked)
    prune(network(), calibration(), sparsity=0.7, rule="erk", score="magnitude", repair="reconstruct")
    assert len(gains) == 4
    assert min(gains) < 0.9  # and it does mend something


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("score", ["magnitude", "second_order"])
def test_more_unknowns_than_samples(images: int, score: str) -> None:
    model = network(torch.float32)
    result = prune(
        model, CalibrationSet(IMAGES[:images], count=1), sparsity=0.5, rule="erk", score=score, repair="reconstruct"
    )
    assert all(torch.isfinite(x).all() for x in result.model.state_dict().values() if x.is_floating_point())


def test_dead_inputs_and_empty_filters() -> None:
    model = network(torch.float32)
    with torch.no_grad():
        model.get_parameter("stem_bn.weight")[2] = 0
        model.get_parameter("stem_bn.bias")[2] = -1  # behind the ReLU this channel is always 0
        model.get_parameter("conv2.weight")[1] = 1e-6  # goes first: an empty filter
    for score in ("magnitude", "second_order"):
        result = prune(model, calibration(), sparsity=0.9, rule="uniform", score=score, repair="reconstruct")
        assert all(torch.isfinite(x).all() for x in result.model.state_dict().values() if x.is_floating_point())
        logits = result.model.eval()(IMAGES[:4])
        assert torch.isfinite(logits).all()


def test_without_bias_or_norm_nothing_is_centred() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 5, 3, bias=False), nn.Flatten(), nn.Linear(245, 2)
    )
    result = prune(model, calibration(), sparsity=0.5, rule="uniform", score="magnitude", repair="reconstruct")
    stem = model[:2].eval()
    with torch.no_grad():
        x, y = stem(IMAGES), model[:3](IMAGES)
        fitted = result.model[2](x)  # type: ignore[index]
        masked = nn.functional.conv2d(x, model[2].weight * result.masks["2"])  # type: ignore[arg-type]
    assert float((fitted - y).square().mean()) < float((masked - y).square().mean())


def test_a_layer_called_several_times() -> None:
    model = create_model("networks:Twice")
    layers = prunable_layers(model, skip=("@first", "unused"))
    plan = allocate(layers, sparsity=0.5, rule="uniform")
    pruned = copy.deepcopy(model)
    apply_masks_(pruned, make_masks(model, plan))
    repaired = repair_model(model, pruned, calibration(), repair="reconstruct")

    def error(other: nn.Module) -> float:
        with torch.no_grad():
            return float((other(IMAGES) - model(IMAGES)).square().mean())

    assert error(repaired) < 0.7 * error(pruned)


def test_reconstruction_helps_where_it_should() -> None:
    """The output behind everything, not only each layer's own."""
    model = network(torch.float32).eval()

    def error(result: PruneResult) -> float:
        with torch.no_grad():
            return float((result.model.eval()(IMAGES) - model(IMAGES)).square().mean())

    plain, refit, surgeon = (
        error(prune(model, calibration(), sparsity=0.7, rule="erk", score=score, repair=repair))
        for score, repair in (("magnitude", "none"), ("magnitude", "reconstruct"), ("second_order", "reconstruct"))
    )
    assert refit < 0.5 * plain
    assert surgeon < refit


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_network_in_half_precision(dtype: torch.dtype) -> None:
    """Sums of squares over images and positions go beyond what float16 holds; as float32 they do not."""
    full, half = (
        prune(model, calibration(40 * IMAGES), sparsity=0.5, rule="erk", score="magnitude", repair="reconstruct")
        .model.float()
        .eval()
        for model in (network(torch.float32), network(dtype))
    )
    with torch.no_grad():
        wanted, found = full(IMAGES), half(IMAGES)
    assert float((wanted - found).norm() / wanted.norm()) < (0.01 if dtype is torch.float16 else 0.1)


@pytest.mark.parametrize("score", ["magnitude", "second_order"])
def test_activations_that_overflow_are_an_error_that_names_the_layer(score: str) -> None:
    model = network(torch.float32)
    with torch.no_grad():
        model.get_parameter("stem_bn.weight").fill_(1e30)
    with pytest.raises(InputError, match=r"layer 'conv1' is given or gives nan, inf or numbers too large"):
        prune(model, calibration(), sparsity=0.5, rule="erk", score=score, repair="reconstruct")


def test_a_score_with_another_repair_sees_dense_inputs() -> None:
    model = network(torch.float32)
    seen: dict[str, int] = {}

    def spy(problem: LeastSquares, count: int) -> Tensor:
        seen[str(tuple(problem.weights.shape))] = count
        mask = torch.ones_like(problem.weights, dtype=torch.bool)
        mask.view(-1)[:count] = False
        return mask

    result = prune(model, calibration(), sparsity=0.5, rule="uniform", score=spy, repair="cr+bn")
    assert len(seen) == 4
    assert not result.masks["conv1"].flatten()[:50].any()


def test_a_score_that_miscounts_is_named() -> None:
    def greedy(problem: LeastSquares, count: int) -> Tensor:
        return torch.zeros_like(problem.weights, dtype=torch.bool)

    with pytest.raises(InputError, match="score 'greedy' must give a bool mask .* weights of layer 'conv1', not"):
        prune(network(), calibration(), sparsity=0.5, rule="uniform", score=greedy, repair="reconstruct")


@pytest.mark.parametrize("fails", [False, True])
def test_the_users_model_is_sacred(fails: bool) -> None:
    model = users_model()
    before, threads = complete_state(model), threading.enumerate()
    calls = []

    def score(problem: LeastSquares, count: int) -> Tensor:
        calls.append(count)
        if fails and len(calls) == 2:
            raise RuntimeError("half-way")
        mask = torch.ones_like(problem.weights, dtype=torch.bool)
        mask.view(-1)[:count] = False
        return mask

    def attempt() -> None:
        prune(model, calibration(), sparsity=0.5, rule="uniform", score=score, repair="reconstruct+bn-short")

    if fails:
        with pytest.raises(RuntimeError, match="half-way"):
            attempt()
    else:
        attempt()
    assert same(complete_state(model), before)
    assert not begun_since(threads)


def test_clear_errors() -> None:
    with pytest.raises(InputError, match="unknown score 'magnitud'.*magnitude"):
        prune(network(), calibration(), sparsity=0.5, recipe="paper", score="magnitud")
    with pytest.raises(InputError, match="a score is a name or a callable, not int"):
        prune(network(), calibration(), sparsity=0.5, recipe="paper", score=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ridge must not be negative"):
        Reconstruction(ridge=-1)


def test_the_problem_of_a_station_is_that_of_its_layer() -> None:
    dense = small_net().double()
    pruned = copy.deepcopy(dense)
    layers = prunable_layers(pruned, skip=())
    stations: list[Station] = []
    for station in walk(dense, pruned, layers, calibration()):
        stations.append(station)
        problem = station.problem(station.moments())
        assert problem.error(station.layer.filters()).max() < 1e-9 * problem.power.max()
    assert [s.layer.name for s in stations] == list(layers.names)


def test_as_many_images_as_its_name_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = module.walk
    monkeypatch.setattr(module, "walk", lambda *a, **k: seen.append(k["images"]) or original(*a, **k))
    result = prune(
        network(), calibration(), sparsity=0.5, rule="erk", score="magnitude", repair="reconstruct@64+bn-short"
    )
    assert seen == [64]
    assert result.repair == "reconstruct@64+bn-short"
    for wrong in ("cr@64", "reconstruct@", "reconstruct@many"):
        with pytest.raises(InputError, match=f"go with a reconstruction, as in 'reconstruct@256', not '{wrong}'"):
            prune(network(), calibration(), sparsity=0.5, recipe="paper", repair=wrong)


class WithAuxiliaryHead(nn.Module):
    """A head that only training reaches, as in GoogLeNet, and a layer whose weight is no plain parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()
        self.auxiliary = nn.Linear(4, 4)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out + self.auxiliary(out[:, :4]).sum() if self.training else out


def test_everything_is_refitted_but_what_is_never_reached() -> None:
    model = WithAuxiliaryHead().double().eval()
    result = prune(model, calibration(), sparsity=0.5, rule="erk", score="magnitude", repair="reconstruct-all")
    plain = prune(model.body, calibration(), sparsity=0.5, rule="erk", score="magnitude", repair="reconstruct-all")
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[f"body.{name}"], tensor, msg=name)
    torch.testing.assert_close(result.model.get_parameter("auxiliary.weight"), model.auxiliary.weight)


# --- drawn columns, and targets that move --------------------------------------------------------------------------


def repaired_by(repair: Any, dense: nn.Module, images: Tensor = IMAGES, sparsity: float = 0.6) -> nn.Module:
    pruned, _ = pruned_copy(dense, sparsity)
    return repair_model(dense, pruned, calibration(images), repair=repair)


def assert_same(one: nn.Module, other: nn.Module, tolerance: float = 0.0) -> None:
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, other.state_dict()[name], atol=tolerance, rtol=tolerance, msg=name)


def test_as_many_columns_as_there_are_is_every_position() -> None:
    dense = network().eval()
    drawn = repaired_by(Reconstruction(everything=True, budget=1e12), dense)
    assert_same(drawn, repaired_by("reconstruct-all", dense), 1e-6)


def test_rectified_gives_the_same_answer_twice_and_its_seed_draws() -> None:
    dense = network(torch.float32).eval()
    few = Reconstruction(everything=True, budget=8.0, rounds=2)
    one = repaired_by(few, dense)
    torch.manual_seed(17)
    assert_same(one, repaired_by(few, dense))
    other = repaired_by(Reconstruction(everything=True, budget=8.0, rounds=2, seed=1), dense)
    assert not torch.equal(one.get_parameter("conv1.weight"), other.get_parameter("conv1.weight"))
    assert_same(repaired_by("rectified", dense), repaired_by(REPAIRS["rectified"], dense))


def test_rounds_lower_the_error_behind_the_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer by layer, at the same inputs, for the same weights that stay: what is minimised, the squared distance to
    the nearest output that is as good and the ridge, falls, and with it the error behind the activation.
    """
    write = module._write_
    repair = Reconstruction(everything=True, budget=64.0, rounds=6)
    losses: dict[str, tuple[float, float]] = {}
    errors: dict[str, tuple[float, float]] = {}

    def compared(station: Station, fitted: Tensor, shift: Tensor) -> None:
        targets = station.targets(64.0, repair.seed)
        moments, low, high = targets.moments(), targets.low, targets.high
        problem = station.problem(moments)
        straight = problem.refitted(fitted != 0, repair.ridge)

        def both(weights: Tensor, shift: Tensor) -> tuple[float, float]:
            assert low is not None
            assert high is not None
            given, y = targets.given(weights, shift), targets.y
            apart = torch.where(y <= low, (given - low).clamp(min=0), torch.where(y >= high, high - given, y - given))
            apart = torch.where(y >= high, apart.clamp(min=0), apart)
            behind = given.clamp(low, high) - y.clamp(low, high)
            held = torch.stack([problem.damped(g, repair.ridge)[0, 0] - x[0, 0] for g, x in enumerate(problem.gram)])
            change = (weights - problem.weights * (weights != 0)).square().sum(-1)
            loss = apart.square().mean(-1) + held[:, None] * change
            return float(loss.sum()), float(behind.square().mean())

        if low is not None and not bool((fitted != 0).all()):
            before, after = both(straight, moments.shift(straight, station.shifts)), both(fitted, shift)
            losses[station.layer.name], errors[station.layer.name] = zip(before, after, strict=True)  # type: ignore[assignment]
        write(station, fitted, shift)

    monkeypatch.setattr(module, "_write_", compared)
    repaired_by(repair, network().eval(), sparsity=0.8)
    assert set(losses) == {"conv1", "shortcut", "conv2", "hidden"}
    assert all(after <= before * (1 + 1e-6) for before, after in losses.values())
    assert all(after <= 1.01 * before for before, after in errors.values())
    assert min(after / before for before, after in errors.values()) < 0.995


def test_rounds_change_nothing_where_no_activation_is_flat() -> None:
    dense = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GELU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(245, 2)).double()
    with_rounds = repaired_by(Reconstruction(everything=True, budget=8.0, rounds=3), dense)
    assert_same(with_rounds, repaired_by(Reconstruction(everything=True, budget=8.0), dense))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rectified_keeps_zeros_and_mends(dtype: torch.dtype) -> None:
    dense = network(dtype).eval()
    pruned, layers = pruned_copy(dense, 0.7)
    found = repair_model(dense, pruned, calibration(), repair="rectified")
    for layer in layers.on(found):
        assert not layer.weight[pruned.get_parameter(f"{layer.name}.weight") == 0].any()

    def error(model: nn.Module) -> float:
        with torch.no_grad():
            wanted = copy.deepcopy(dense).float()(IMAGES)
            return float((copy.deepcopy(model).float().eval()(IMAGES) - wanted).square().mean())

    assert error(found) < 0.5 * error(pruned)


def test_rectified_where_a_layer_is_called_several_times() -> None:
    model = create_model("networks:Twice")
    config = PruneConfig(only=("body", "last"))
    how = {"rule": "uniform", "score": "alternating", "repair": "rectified"}
    result = prune(model, calibration(), sparsity=0.5, config=config, **how)
    assert all(torch.isfinite(x).all() for x in result.model.state_dict().values())


@pytest.mark.parametrize("images", [1, 3])
def test_rectified_with_more_unknowns_than_samples(images: int) -> None:
    result = prune(
        network(torch.float32),
        CalibrationSet(IMAGES[:images], count=1),
        sparsity=0.5,
        rule="erk",
        score="alternating",
        repair="rectified",
    )
    assert all(torch.isfinite(x).all() for x in result.model.state_dict().values() if x.is_floating_point())


def test_rectified_leaves_the_users_model_alone() -> None:
    model = users_model()
    before, threads = complete_state(model), threading.enumerate()
    prune(model, calibration(), sparsity=0.5, rule="uniform", score="alternating", repair="rectified")
    assert same(complete_state(model), before)
    assert not begun_since(threads)


def test_parameters_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="rounds must not be negative and budget positive, not -1 and 8.0"):
        Reconstruction(rounds=-1, budget=8.0)
    for budget in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="budget positive"):
            Reconstruction(budget=budget)
    with pytest.raises(InputError, match="give a budget too"):
        Reconstruction(rounds=2)
    with pytest.raises(InputError, match="images at least 1"):
        Reconstruction(images=0)


# --- passes that begin late ----------------------------------------------------------------------------------------


def small_room(monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    """As if only so many images of the residual network could stand at its first prunable layer."""
    monkeypatch.setattr(walking, "HELD", 4 * walking._LIVE * 8 * 9 * 9 * images)


def test_early_layers_see_fewer_images_and_the_last_all(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = network().eval()
    repaired, layers = pruned_copy(dense)
    small_room(monkeypatch, 40)
    threads, seen = threading.enumerate(), {}
    for station in walk(dense, repaired, layers, calibration(), images=300):
        seen[station.layer.name] = torch.cat([call.x for call, _, _ in station.pairs])
        with torch.no_grad():
            station.layer.weight.mul_(1.1)
    assert not begun_since(threads)
    assert tuple(seen) == trace(dense, layers.on(dense), IMAGES.double()).order
    counts = [len(x) for x in seen.values()]
    assert counts[0] == 40
    assert counts == sorted(counts)
    assert counts[-1] == 300
    met = inputs_of(repaired.eval(), layers.names)
    for name, x in seen.items():
        torch.testing.assert_close(x, met[name][: len(x)], msg=name)


@pytest.mark.parametrize("repair", ["reconstruct", "rectified", "affine"])
@pytest.mark.parametrize("room", [0, 1, 7, 40])
def test_late_passes_reach_every_layer(repair: str, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = network(torch.float32).eval()
    pruned, layers = pruned_copy(dense)
    before = complete_state(dense)
    small_room(monkeypatch, room)
    found = repair_model(dense, pruned, calibration(IMAGES[:60]), repair=repair)
    assert all(torch.isfinite(x).all() for x in found.state_dict().values() if x.is_floating_point())
    for name in layers.names if room else ():  # of one image nothing can be learned behind the mean over positions
        assert not torch.equal(found.get_parameter(f"{name}.weight"), pruned.get_parameter(f"{name}.weight")), name
    assert same(complete_state(dense), before)


def test_room_enough_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = network().eval()
    whole = repaired_by("reconstruct", dense)
    small_room(monkeypatch, 4 * 128)
    assert_same(repaired_by("reconstruct", dense), whole)
