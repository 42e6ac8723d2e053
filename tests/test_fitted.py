"""rr conditioned on reconstruction: the closed form against single-layer networks, really pruned and refitted."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from repairability import (
    Allocation,
    CalibrationSet,
    InputError,
    allocate,
    create_model,
    diagnose,
    prunable_layers,
    prune,
    repair_model,
)
from repairability.diagnostics import fitted
from repairability.masks import apply_masks_, make_masks
from repairability.scores import SecondOrder
from test_sacred import complete_state, same, users_model

IMAGES = torch.randn(90, 3, 9, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
LAYERS = ("conv1", "depthwise", "shortcut", "conv2")


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def model() -> nn.Module:
    return create_model("networks:Residual", seed=3).double().eval()


def behind(model: nn.Module, name: str) -> Tensor:
    """What a layer gives, with the mean that its BatchNorm takes off: reconstruction writes into either."""
    norms = {"depthwise": "bn2", "shortcut": "bn3"}
    found: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_hook(lambda m, x, y: found.append(y))
    with torch.no_grad():
        model(IMAGES)
    handle.remove()
    if name in norms:
        running = model.get_submodule(norms[name]).get_buffer("running_mean")
        found[0] = found[0] - running[:, None, None]
    return found[0]


def distance(dense: Tensor, other: Tensor, power: Tensor) -> float:
    return float(((dense - other).square().mean((0, 2, 3)) / power).mean())


@pytest.mark.parametrize("name", LAYERS)
def test_equals_a_single_layer_network(name: str, model: nn.Module) -> None:
    grid = (0.5, 0.8)
    found = diagnose(model, CalibrationSet(IMAGES, count=40), grid=grid, repair="reconstruct")
    plain = behind(model, name)
    running = {"depthwise": "bn2", "shortcut": "bn3"}.get(name)
    output = (
        plain if running is None else plain + model.get_submodule(running).get_buffer("running_mean")[:, None, None]
    )
    power = output.square().mean((0, 2, 3)) + 1e-8
    for i, s in enumerate(grid):
        layers = prunable_layers(model, only=(name,))
        pruned = copy.deepcopy(model)
        apply_masks_(pruned, make_masks(model, allocate(layers, sparsity=s, rule="uniform")))
        repaired = repair_model(model, pruned, CalibrationSet(IMAGES, count=40), repair="reconstruct").eval()
        assert found.raw[name][i] == pytest.approx(distance(plain, behind(pruned, name), power), rel=1e-6)
        assert found.residual[name][i] == pytest.approx(distance(plain, behind(repaired, name), power), rel=1e-5)
        assert found.rr[name][i] == pytest.approx(found.residual[name][i] / found.raw[name][i], rel=1e-5)


def test_the_surgeons_trace_is_what_refitting_leaves(model: nn.Module) -> None:
    """One trace for all levels; the same levels fitted one by one leave the same error, but for the ridge's share."""

    class Plain:
        """The same masks without the trace."""

        def __call__(self, problem: object, count: int) -> Tensor:
            return SecondOrder()(problem, count)  # type: ignore[arg-type]

    calibration = CalibrationSet(IMAGES, count=40)
    grid = (0.0, 0.3, 0.5, 0.7, 0.9)
    traced = diagnose(model, calibration, grid=grid, repair="reconstruct", score="second_order")
    fitted = diagnose(model, calibration, grid=grid, repair="reconstruct", score=Plain())
    for name in LAYERS:
        assert np.allclose(traced.raw[name], fitted.raw[name])
        assert np.allclose(traced.residual[name], fitted.residual[name], rtol=0.1, atol=2e-3)
        assert traced.residual[name][0] == 0
        assert traced.rr[name][0] == 1
        assert (np.diff(traced.residual[name]) >= 0).all()


def test_refitting_mends_every_layer(model: nn.Module) -> None:
    found = diagnose(model, CalibrationSet(IMAGES, count=90), grid=(0.5, 0.7), repair="reconstruct")
    for name in LAYERS:
        assert (found.rr[name] < 1).all()


def test_allocating_by_it(model: nn.Module) -> None:
    result = prune(
        model,
        CalibrationSet(IMAGES, count=40),
        sparsity=0.75,
        rule="residual",
        score="second_order",
        repair="reconstruct",
    )
    assert isinstance(result.allocation, Allocation)
    assert result.diagnosis is not None
    assert result.diagnosis.repair == "reconstruct"
    assert result.sparsity >= 0.74


def test_the_users_model_is_sacred() -> None:
    model = users_model()
    before = complete_state(model)
    diagnose(model, CalibrationSet(IMAGES.float(), count=40), repair="reconstruct", score="second_order")
    assert same(complete_state(model), before)


def test_clear_errors(model: nn.Module) -> None:
    with pytest.raises(InputError, match="is diagnosed at the layer's own output, not at 'norm'"):
        diagnose(model, CalibrationSet(IMAGES, count=40), repair="reconstruct", observe="norm")
    with pytest.raises(InputError, match="the grid of layer 'conv1' must rise"):
        diagnose(model, CalibrationSet(IMAGES, count=40), repair="reconstruct", grid=(0.9, 0.8))


def test_wide_filters_are_diagnosed_in_blocks_of_their_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that share no correlation: in blocks or as a whole, the curves are the same."""
    draw = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 16), nn.Linear(16, 6), nn.Linear(6, 3)).eval()
    with torch.no_grad():
        for layer in model:
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=draw))
        model[0].weight.zero_()
        model[0].weight[:8, :6] = torch.randn(8, 6, generator=draw)  # inputs 0 to 7 of the next know nothing of 8 to 15
        model[0].weight[8:, 6:] = torch.randn(8, 6, generator=draw)
        model[0].bias.zero_()
    whole = torch.eye(12).repeat(40, 1)  # equal steps in every direction: the halves are uncorrelated to the last bit
    images = torch.cat([whole, -whole])
    layers = prunable_layers(model, types=("linear",), skip=(), batch=images).subset(["1"])
    settings = {"grid": [0.5, 0.8], "repair": "rectified", "score": "activation", "layers": layers}
    straight = diagnose(model, CalibrationSet(images, 128), **settings)
    monkeypatch.setattr(fitted, "BLOCK", 8)
    cut = diagnose(model, CalibrationSet(images, 128), **settings)
    assert cut.raw["1"] == pytest.approx(straight.raw["1"], rel=0.05)
    assert cut.residual["1"] == pytest.approx(straight.residual["1"], rel=0.35)
