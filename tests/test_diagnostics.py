from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import reference
from conftest import Cifar10
from networks import Residual, Twice, small_net
from repairability import (
    CalibrationSet,
    Diagnosis,
    InputError,
    MissingExtraError,
    create_model,
    diagnose,
    prunable_layers,
)
from repairability._torch import threads
from repairability.diagnostics import GRID, products
from repairability.repairs import ChannelRepair

NORMS = {"conv1": "bn1", "depthwise": "bn2", "shortcut": "bn3", "conv2": "bn4"}


def images(n: int = 24, size: int = 9, channels: int = 3) -> Tensor:
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(1))


def calibration(n: int = 24, **options: int) -> CalibrationSet:
    return CalibrationSet(images(n), count=n, **options)


def assert_literal(
    found: Diagnosis, model: nn.Module, x: Tensor, rtol: float, norms: dict[str, str] | None = None, **options: Any
) -> None:
    """Every cell against the deep-copying reference."""
    for layer in found.rr:
        for k, s in enumerate(found.rr.grid[layer]):
            expected = reference.diagnose(model, x, layer, float(s), norm=(norms or {}).get(layer), **options)
            got = (found.raw[layer][k], found.residual[layer][k], found.rr[layer][k])
            np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-12, err_msg=f"{layer} at {s}")


# --- threads -------------------------------------------------------------------------------------------------------


def test_any_number_of_threads_measures_the_same_and_the_same_bits_again() -> None:
    model = create_model("networks:Residual").double()
    found = {}
    for count in (1, 2, 3):
        with threads(count):
            found[count] = [diagnose(model, calibration(10, batch_size=4), grid=(0.3, 0.9)) for _ in range(2)]
            assert torch.get_num_threads() == count
    for first, second in found.values():
        for layer in first.rr:
            np.testing.assert_array_equal(first.rr[layer], second.rr[layer])
            np.testing.assert_allclose(first.rr[layer], found[1][0].rr[layer], rtol=1e-9)
            np.testing.assert_allclose(first.raw[layer], found[1][0].raw[layer], rtol=1e-9)


def test_a_network_that_normalises_by_the_batch_is_measured_on_whole_batches() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8, track_running_stats=False)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    images, found = torch.randn(32, 3, 12, 12), []
    for count in (1, 2):
        with threads(count):
            found.append(diagnose(net, images))
    for layer in found[0].residual:
        np.testing.assert_allclose(found[1].residual[layer], found[0].residual[layer], rtol=1e-5)


def test_a_fault_in_a_thread_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(products.LevelProducts, "chunks", fail)
    with threads(2):
        with pytest.raises(InputError, match="no memory"):
            diagnose(create_model("networks:Residual"), calibration(10), grid=(0.3, 0.9))
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("chunk", [1, 40, 700])
def test_chunks_of_any_size_measure_the_same(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = create_model("networks:Residual").double()
    whole = diagnose(model, calibration(20), grid=(0.3, 0.9))
    monkeypatch.setattr(products, "_CHUNK", chunk)
    cut = diagnose(model, calibration(20), grid=(0.3, 0.9))
    for layer in whole.rr:
        np.testing.assert_allclose(cut.rr[layer], whole.rr[layer], rtol=1e-9)
        np.testing.assert_allclose(cut.raw[layer], whole.raw[layer], rtol=1e-9)


# --- agreement with the literal method -----------------------------------------------------------------------------


@pytest.mark.parametrize("repair", ["cr+bn", "cr", "bn", "none"])
@pytest.mark.parametrize("observe", ["layer", "norm"])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-8), (torch.float32, 1e-4)])
def test_a_small_network_with_everything(repair: str, observe: str, dtype: torch.dtype, rtol: float) -> None:
    model = create_model("networks:Residual").to(dtype)
    found = diagnose(model, calibration(), grid=(0.3, 0.7, 0.95), repair=repair, observe=observe)
    norms = NORMS if observe == "norm" else None
    assert_literal(found, model, images().to(dtype), rtol, norms, repair=repair)


@pytest.mark.usefixtures("quiet")
def test_by_the_letter_every_norm_of_the_single_layer_network_moves() -> None:
    """residual against a deep copy that is pruned, scaled and recalibrated by hand; raw is as ever."""
    model, grid = create_model("networks:Residual").double(), (0.0, 0.3, 0.9)
    samples = calibration()
    found, fast = (diagnose(model, samples, grid=grid, observe=observe) for observe in ("literal", "layer"))
    batches = list(samples.recalibration(model, 20, 128))
    for layer in found.rr:
        np.testing.assert_array_equal(found.raw[layer], fast.raw[layer])
        assert (found.residual[layer][0], found.rr[layer][0]) == (0, 1)
        for k, s in list(enumerate(grid))[1:]:
            expected = reference.literal_residual(model, images().double(), batches, layer, s)
            np.testing.assert_allclose(found.residual[layer][k], expected, rtol=1e-7, err_msg=f"{layer} at {s}")
            np.testing.assert_allclose(found.rr[layer][k], expected / found.raw[layer][k], rtol=1e-6)
            assert abs(expected / fast.residual[layer][k] - 1) > 1e-3  # the stem's BatchNorm is upstream of all
    assert "observed at the layer, in a network repaired for it" in str(found)


def test_by_the_letter_nothing_differs_without_batchnorm() -> None:
    model = create_model("networks:Residual").double()
    found, fast = (diagnose(model, calibration(), grid=(0.5,), repair="cr", observe=x) for x in ("literal", "layer"))
    for layer in found.rr:
        np.testing.assert_allclose(found.rr[layer], fast.rr[layer], rtol=1e-8)


def test_by_the_letter_a_refit_is_not_observed() -> None:
    with pytest.raises(InputError, match="diagnosed at the layer's own output, not at 'literal'"):
        diagnose(create_model("networks:Residual"), calibration(), observe="literal", repair="reconstruct")


@pytest.mark.usefixtures("quiet")
def test_linear_layers_with_extra_axes() -> None:
    model = create_model("networks:Residual").double()
    layers = prunable_layers(model, types=("linear",), skip=())
    found = diagnose(model, calibration(), layers=layers, grid=(0.5, 0.9))
    assert_literal(found, model, images().double(), 1e-8)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [0, 1, (2, 1), "same"])
def test_every_padding(mode: str, padding: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 3, padding=padding, dilation=2, padding_mode=mode), nn.Conv2d(6, 4, 1)
    ).double()
    found = diagnose(model, calibration(), grid=(0.5, 0.9), repair="cr")
    assert_literal(found, model, images().double(), 1e-8, repair="cr")


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv3d])
def test_other_dimensions(kind: Any) -> None:
    model = nn.Sequential(kind(2, 4, 3, padding=1), kind(4, 6, 3, stride=2, padding=1, groups=2)).double()
    x = torch.randn(8, 2, *[5] * (1 if kind is nn.Conv1d else 3), dtype=torch.float64)
    layers = prunable_layers(model, types=(kind.__name__.lower(),))
    found = diagnose(model, CalibrationSet(x, count=8), layers=layers, grid=(0.5, 0.9))
    assert_literal(found, model, x, 1e-8)


def test_dead_taps_change_nothing() -> None:
    """On maps as small as the kernel most taps only ever meet padding; they are left out of the product."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3, stride=2, padding=1), nn.Conv2d(6, 5, 3, padding=1)
    ).double()
    x = images(size=2).double()
    found = diagnose(model, CalibrationSet(x, count=24), grid=(0.6, 0.9))
    assert_literal(found, model, x, 1e-8)


@pytest.mark.parametrize("sparse_cost", [0, 1e9])
def test_sparse_and_dense_products_agree(sparse_cost: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model = create_model("networks:Residual").double()
    expected = diagnose(model, calibration(), grid=(0.4, 0.8))
    monkeypatch.setattr(products, "_SPARSE_COST", sparse_cost)
    monkeypatch.setattr(products, "_CHUNK", 500)
    found = diagnose(model, calibration(), grid=(0.4, 0.8))
    for layer in found.rr:
        np.testing.assert_allclose(found.rr[layer], expected.rr[layer], rtol=1e-9)


@pytest.mark.parametrize("observe", ["layer", "norm"])
def test_the_real_resnet20(observe: str, resnet20: nn.Module, cifar10: Cifar10) -> None:
    found = diagnose(resnet20, cifar10.train, observe=observe)
    x = cifar10.train[:128]
    cells = list(itertools.product(("layer1.0.conv1", "layer2.0.conv1", "layer3.2.conv2"), (0.7, 0.9, 0.975)))
    for layer, s in cells if observe == "layer" else cells[::4]:  # behind the norm a cell costs 20 passes more
        norm = layer.replace("conv", "bn") if observe == "norm" else None
        expected = reference.diagnose(resnet20, x, layer, s, norm=norm)
        k = GRID.index(s)
        got = (found.raw[layer][k], found.residual[layer][k], found.rr[layer][k])
        np.testing.assert_allclose(got, expected, rtol=1e-4, err_msg=f"{layer} at {s}")


# --- laws ----------------------------------------------------------------------------------------------------------


def test_any_split_of_the_images_agrees() -> None:
    model = create_model("networks:Residual")
    whole, parts = (diagnose(model, calibration(batch_size=n), observe="norm") for n in (24, 5))
    for layer in whole.rr:
        np.testing.assert_allclose(parts.rr[layer], whole.rr[layer], rtol=1e-5)


def test_a_second_run_gives_the_same_bits() -> None:
    model = create_model("networks:Residual")
    assert diagnose(model, calibration()) == diagnose(model, calibration())


def test_a_level_that_prunes_nothing_is_set() -> None:
    model = create_model("networks:Residual")
    found = diagnose(model, calibration(), grid=(0.0, 0.001, 0.9))
    for layer in found.rr:
        assert found.raw[layer][:2].tolist() == found.residual[layer][:2].tolist() == [0, 0]
        assert found.rr[layer][:2].tolist() == [1, 1]
    nothing = diagnose(model, calibration(), grid=(0.0,))
    assert all((nothing.rr[layer] == 1).all() for layer in nothing.rr)


def test_a_grid_may_differ_per_layer() -> None:
    model = create_model("networks:Residual")
    whole = diagnose(model, calibration(), grid=(0.5, 0.7, 0.9))
    grid = {"conv1": (0.7,), "depthwise": (0.5, 0.9), "shortcut": (0.9,), "conv2": (0.5, 0.7, 0.9)}
    found = diagnose(model, calibration(), grid=grid)
    for layer, points in grid.items():
        assert found.rr.grid[layer].tolist() == list(points)
        picked = [k for k, s in enumerate((0.5, 0.7, 0.9)) if s in points]
        np.testing.assert_allclose(found.rr[layer], whole.rr[layer][picked], rtol=1e-6)


def test_without_repair_everything_remains() -> None:
    found = diagnose(create_model("networks:Residual"), calibration(), repair="none")
    assert all(np.allclose(found.rr[layer], 1) for layer in found.rr)


def test_calls_of_one_module_add_up() -> None:
    """Two calls with dense inputs are like twice as many samples."""
    model = create_model("networks:Twice").double()
    layers = prunable_layers(model, skip=("@first", "unused"))
    found = diagnose(model, calibration(), layers=layers, grid=(0.8,), repair="none")
    seen: list[Tensor] = []
    handle = model.get_submodule("body").register_forward_hook(lambda _m, args, _out: seen.append(args[0]))
    with torch.no_grad():
        model(images().double())
    handle.remove()
    alone = nn.Sequential(copy.deepcopy(model.get_submodule("body")))
    assert found.raw["body"][0] == pytest.approx(reference.diagnose(alone, torch.cat(seen), "0", 0.8)[0], rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    model = create_model("networks:Residual")
    full, half = diagnose(model, calibration()), diagnose(copy.deepcopy(model).to(dtype), calibration())
    for layer in full.rr:
        np.testing.assert_allclose(half.rr[layer], full.rr[layer], rtol=0.1)


def test_channels_last() -> None:
    model = create_model("networks:Residual")
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    x = CalibrationSet(images().contiguous(memory_format=torch.channels_last), count=24)
    plain, found = diagnose(model, calibration()), diagnose(last, x)
    for layer in plain.rr:
        np.testing.assert_allclose(found.rr[layer], plain.rr[layer], rtol=1e-4)


def test_renaming_and_reordering_layers_permutes_nothing() -> None:
    class Renamed(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.z = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.z(x)

    model = create_model("networks:Residual")
    a, b = diagnose(model, calibration()), diagnose(Renamed(model), calibration())
    assert [f"z.{layer}" for layer in a.rr] == list(b.rr)
    assert all(np.array_equal(a.rr[layer], b.rr[f"z.{layer}"]) for layer in a.rr)


def test_a_channel_that_its_norm_silences() -> None:
    """weight = 0: the output is constant, before and after; nothing to measure, no nan."""
    model = create_model("networks:Residual").double()
    nn.init.zeros_(model.get_parameter("bn4.weight"))
    found = diagnose(model, calibration(), observe="norm")
    assert (found.raw["conv2"] < 1e-12).all()
    assert_literal(found, model, images().double(), 1e-6, NORMS)


def test_empty_filters_never_yield_nan() -> None:
    model = create_model("networks:Residual").double()
    with torch.no_grad():
        model.get_parameter("conv2.weight")[1:] *= 1e-6  # at 95 % nothing of these filters is left
        model.get_parameter("shortcut.weight").zero_()
    for tau, observe in itertools.product(("median", 0.0), ("layer", "norm")):
        found = diagnose(model, calibration(), repair=ChannelRepair(tau=tau), observe=observe)
        assert all(np.isfinite(found.rr[layer]).all() for layer in found.rr)
    assert_literal(diagnose(model, calibration()), model, images().double(), 1e-6)


# --- travelling ----------------------------------------------------------------------------------------------------


def test_there_and_back() -> None:
    found = diagnose(create_model("networks:Residual"), calibration(), grid=(0.5, 0.7))
    assert Diagnosis.from_json(found.to_json()) == found
    assert Diagnosis.from_csv(found.to_csv()) == found
    assert Diagnosis.from_frame(found.to_frame()) == found
    assert list(found.to_frame().columns[:5]) == ["layer", "sparsity", "raw", "residual", "rr"]
    assert "repair cr+bn, observed at the layer, 24 images" in str(found)


def test_rows_that_are_none() -> None:
    for text in ("", "layer,sparsity\na,0.5\n", "layer,sparsity,raw,residual,rr\na,x,1,1,1\n"):
        with pytest.raises(InputError, match="these rows hold no Diagnosis"):
            Diagnosis.from_csv(text)
    with pytest.raises(InputError, match="not of type Diagnosis"):
        Diagnosis.from_json("{}")


# --- what cannot be done -------------------------------------------------------------------------------------------


def test_a_layer_without_a_norm_is_named() -> None:
    with pytest.raises(InputError, match="observe='norm' needs a BatchNorm right behind each layer; 2, 4 has none"):
        diagnose(small_net(), calibration(), observe="norm")
    found = diagnose(small_net(), calibration(), observe="norm-or-layer")
    plain = diagnose(small_net(), calibration())
    assert list(found.rr) == list(plain.rr)


def test_an_unreached_layer_is_named() -> None:
    """It is left out where nobody chose it, and an error where somebody did."""
    model = Twice()
    with pytest.warns(UserWarning, match="layer 'unused' of Twice is not pruned: the model never reaches it"):
        found = diagnose(model, calibration())
    assert list(found.rr) == ["body", "last"]
    with pytest.raises(InputError, match="the model never reaches unused"):
        diagnose(model, calibration(), layers=prunable_layers(model))


class Standardised(nn.Conv2d):
    """What multiplies is not the weight."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight / self.weight.std(), self.bias)


class PaddedFirst(nn.Conv2d):
    """A forward of its own, but the weight as it is: TensorFlow's padding, say."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(nn.functional.pad(x, (0, 1, 0, 1)), self.weight, self.bias, stride=2)


def test_a_layer_whose_product_sees_another_tensor_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Standardised(4, 4, 3), nn.Conv2d(4, 4, 3))
    with pytest.warns(UserWarning, match="layer '1' of Sequential is not pruned: .*does not multiply by it as it is"):
        assert list(diagnose(model, calibration()).rr) == ["2"]
    with pytest.raises(InputError, match=r"nothing is left to prune .*1: the model does not multiply by it as it is"):
        diagnose(model[:2], calibration())
    with pytest.raises(InputError, match="the model never reaches 1"):
        diagnose(model, calibration(), layers=prunable_layers(model))


@pytest.mark.parametrize("repair", ["cr+bn", "affine", "reconstruct"])
def test_a_layer_with_its_own_forward_is_measured(repair: str) -> None:
    """As the same convolution behind a padding that is a module of its own."""
    own = nn.Sequential(nn.Conv2d(3, 4, 1), PaddedFirst(4, 6, 3), nn.Conv2d(6, 4, 1)).double()
    apart = nn.Sequential(own[0], nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(4, 6, 3, stride=2).double(), own[2])
    apart[2].load_state_dict(own[1].state_dict())
    found, expected = (diagnose(model, calibration(), grid=(0.5, 0.9), repair=repair) for model in (own, apart))
    for here, there in (("1", "2"), ("2", "3")):
        for curves, others in ((found.raw, expected.raw), (found.residual, expected.residual), (found.rr, expected.rr)):
            np.testing.assert_allclose(curves[here], others[there], rtol=1e-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": ()}, "must rise and not be empty"),
        ({"grid": (0.9, 0.7)}, "must rise and not be empty"),
        ({"grid": (0.7, 1.5)}, "a grid sparsity of layer 'conv1' must be between 0 and 1"),
        ({"grid": "auto"}, "grid must be a list of sparsities"),
        ({"grid": {"conv1": (0.5,)}}, "gives no sparsities for layer 'depthwise'"),
        ({"grid": np.linspace(0.1, 0.9, 300)}, "has 300 sparsities; at most 255"),
        ({"observe": "output"}, "observe must be one of layer, norm, norm-or-layer, literal, not 'output'"),
        ({"repair": "cr+nb"}, r"unknown repair 'nb'"),
        ({"repair": 3}, "a repair is a name or a callable, not int"),
        ({"repair": lambda *_: None}, "has no per-channel form .*diagnose with another repair"),
    ],
)
def test_clear_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        diagnose(Residual(), calibration(), **options)


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    found = diagnose(Residual(), calibration(), grid=(0.5,))
    with pytest.raises(MissingExtraError, match=r"repairability\[report\]"):
        found.to_frame()


class _Noisy(nn.Module):
    """Draws random numbers also when it is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) + 0.1 * torch.randn(1)).mean((2, 3))


def test_a_network_that_draws_random_numbers_is_diagnosed_the_same_twice() -> None:
    images = torch.randn(24, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with threads(2):
        first, again = (diagnose(_Noisy(), CalibrationSet(images, 24, batch_size=6)) for _ in range(2))
    assert np.array_equal(first.rr["second"], again.rr["second"])
    assert np.array_equal(first.raw["second"], again.raw["second"])
