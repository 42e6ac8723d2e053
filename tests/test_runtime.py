"""The runtime answers as the network does, whatever it is made of; it refuses what it cannot do."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import repairability as rp
from repairability._torch import evaluation_mode_, state_digest

pytest.importorskip("numba", reason="the extra runtime is not installed")

from repairability.deploy.runtime import engine, kernels
from repairability.deploy.runtime.engine import Engine
from repairability.deploy.runtime.executor import Executor
from repairability.deploy.runtime.graph import read
from repairability.deploy.runtime.layout import Layouts, Phases, rounded
from repairability.deploy.runtime.measures import WrongAnswer, check_same
from repairability.deploy.runtime.packing import pack_dense, pack_sparse
from repairability.deploy.runtime.planner import Planner
from repairability.deploy.runtime.stages import Flatten, LinearStage, Mean, Pool, Unreadable


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pruned(model: nn.Module, sparsity: float = 0.8, seed: int = 0) -> nn.Module:
    """Random weights with zeros, BatchNorm that does something, eval mode."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            with torch.no_grad():
                module.weight.mul_(torch.rand(module.weight.shape, generator=generator) >= sparsity)
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                assert tensor is not None
                tensor.uniform_(0.5, 1.5, generator=generator)
    return evaluation_mode_(model)


def agree(model: nn.Module, example: Tensor, kernel: str, threads: int = 1) -> list[object]:
    """The plan of a network answers as the network; its stages."""
    with torch.no_grad():
        expected = model(example)
        network = read(model, example)
        every = range(len(network.stages)) if kernel == "dense" else ()
        plan = Planner(network, len(example), frozenset(every), threads).plan()
        run = Executor(plan, tuple(example.shape), tuple(expected.shape), threads)
        for _ in range(2):  # what the first pass leaves behind does not matter
            given = run(example)
            check_same(given, expected, "in the test")
    return list(network.stages)


CONVOLUTIONS = [
    pytest.param({"kernel_size": 1}, id="1x1"),
    pytest.param({"kernel_size": 3, "padding": 1}, id="3x3"),
    pytest.param({"kernel_size": 3}, id="3x3 valid"),
    pytest.param({"kernel_size": 3, "padding": 2}, id="3x3 wide"),
    pytest.param({"kernel_size": 5, "padding": 2, "bias": False}, id="5x5"),
    pytest.param({"kernel_size": 7, "padding": 3, "stride": 2}, id="7x7 by 2"),
    pytest.param({"kernel_size": 3, "padding": 1, "stride": 2}, id="3x3 by 2"),
    pytest.param({"kernel_size": 1, "stride": 2}, id="1x1 by 2"),
    pytest.param({"kernel_size": 4, "stride": 4}, id="patches"),
    pytest.param({"kernel_size": 3, "padding": 1, "stride": 3}, id="3x3 by 3"),
    pytest.param({"kernel_size": (3, 1), "padding": (1, 0)}, id="3x1"),
    pytest.param({"kernel_size": 3, "padding": (0, 1), "stride": (1, 2)}, id="3x3 by 1, 2"),
    pytest.param({"kernel_size": 3, "stride": (3, 2)}, id="3x3 by 3, 2"),
    pytest.param({"kernel_size": 3, "padding": 2, "dilation": 2}, id="dilated"),
    pytest.param({"kernel_size": 3, "padding": 2, "dilation": 2, "stride": 2}, id="dilated by 2"),
    pytest.param({"kernel_size": 3, "padding": "same"}, id="same"),
    pytest.param({"kernel_size": 3, "padding": 1, "groups": 2}, id="groups"),
]


@pytest.mark.parametrize("kernel", ["sparse", "dense"])
@pytest.mark.parametrize("settings", CONVOLUTIONS)
def test_a_convolution(settings: dict[str, object], kernel: str) -> None:
    """Between others, so that it reads and writes planes with borders; filters that are no multiple of four."""
    layer = nn.Conv2d(6, 10, **settings)  # type: ignore[arg-type]
    model = pruned(nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), layer, nn.ReLU(), nn.Conv2d(10, 5, 3, padding=1)))
    for shape in ((1, 3, 7, 7), (2, 3, 9, 5), (1, 3, 16, 40)):
        agree(model, drawn(*shape), kernel)


@pytest.mark.parametrize("settings", CONVOLUTIONS[:-1])
def test_a_convolution_alone_reads_the_images_as_they_are_given(settings: dict[str, object]) -> None:
    model = pruned(nn.Sequential(nn.Conv2d(3, 4, **settings)))  # type: ignore[arg-type]
    for kernel in ("sparse", "dense"):
        agree(model, drawn(2, 3, 14, 14), kernel)


def test_depthwise_convolutions_and_clamps() -> None:
    depthwise = nn.Conv2d(8, 8, 3, padding=1, stride=2, groups=8)
    model = pruned(nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU6(), depthwise, nn.Hardtanh(-0.5, 0.25)), 0.0)
    stages = agree(model, drawn(2, 3, 12, 10), "sparse")
    assert len(stages) == 2  # the clamps are folded


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.MaxPool2d(3, 1, 1),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d((2, 4)),
        nn.AdaptiveAvgPool2d((4, 2)),
        nn.AdaptiveAvgPool2d(1),
    ],
    ids=str,
)
def test_pooling(pool: nn.Module) -> None:
    """Behind a convolution without ReLU: a border of zeros would win over negative numbers."""
    conv = nn.Conv2d(3, 5, 3, padding=1)
    nn.init.constant_(conv.bias, -9.0)  # type: ignore[arg-type]
    model = pruned(nn.Sequential(conv, pool, nn.Conv2d(5, 4, 1)))
    for shape in ((2, 3, 8, 12), (1, 3, 12, 8)):
        agree(model, drawn(*shape), "sparse")
    agree(evaluation_mode_(nn.Sequential(pool)), drawn(2, 3, 8, 12) - 9, "sparse")


class Residual(nn.Module):
    """Additions of a block's input, of a projection made later, of the network's own input, of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(3))
        self.bn = nn.BatchNorm2d(4)
        self.down = nn.Conv2d(4, 6, 1, stride=2)
        self.main = nn.Conv2d(4, 6, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn(self.a(x)) + x)
        y = F.relu(y + self.b(y), inplace=True)
        y = y + y
        z = self.c(y)
        z += y
        return torch.relu(self.main(z) + self.down(z))


@pytest.mark.parametrize("kernel", ["sparse", "dense"])
def test_residual_additions(kernel: str) -> None:
    stages = agree(pruned(Residual()), drawn(3, 4, 9, 5), kernel)
    assert len(stages) == 6  # five convolutions, and y + y


class InPlace(nn.Module):
    """A block that begins with an activation in place: its shortcut takes what the activation left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.second(self.relu(x))
        return x + y


def test_what_an_operation_in_place_leaves_is_what_others_read() -> None:
    agree(pruned(InPlace()), drawn(2, 3, 8, 8), "sparse")


class Branches(nn.Module):
    """A concatenation, a value read twice with one reader before its ReLU, BatchNorm without a convolution, a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.left, self.right = nn.Conv2d(4, 3, 1), nn.Conv2d(4, 5, 3, padding=1)
        self.bn = nn.BatchNorm2d(12)
        self.head = nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        joined = torch.cat([self.left(x), x, self.right(torch.relu(x))], 1)
        small = F.pad(self.bn(joined)[:, :, ::2, ::2], (0, 0, 0, 0, 1, 3))
        logits: Tensor = self.head(small.mean((2, 3)))
        return logits


@pytest.mark.parametrize("batch", [1, 3])
def test_branches(batch: int) -> None:
    agree(pruned(Branches()), drawn(batch, 3, 10, 10), "sparse")


class Head(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), -1)


@pytest.mark.parametrize("kernel", ["sparse", "dense"])
@pytest.mark.parametrize("batch", [1, 2, 16, 33])
def test_linear_layers(batch: int, kernel: str) -> None:
    body = [nn.Conv2d(3, 5, 3), nn.ReLU(), Head(), nn.Dropout(), nn.Linear(5 * 36, 30), nn.ReLU()]
    agree(pruned(nn.Sequential(*body, nn.Dropout(), nn.Linear(30, 11))), drawn(batch, 3, 8, 8), kernel)
    mlp = nn.Sequential(nn.Linear(40, 23), nn.ReLU(), nn.Linear(23, 23, bias=False), nn.ReLU6())
    agree(pruned(mlp), drawn(batch, 40), kernel)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_threads_share_images_or_filters(batch: int) -> None:
    model = pruned(rp.create_model("digits"))
    for kernel in ("sparse", "dense"):
        agree(model, drawn(batch, 1, 16, 16), kernel, threads=2)


@pytest.mark.parametrize("name", ["resnet20", "digits", "vgg16_bn_quarter"])
def test_our_networks_are_read_as_a_whole(name: str) -> None:
    model = pruned(rp.create_model(name))
    images = drawn(2, *((1, 16, 16) if name == "digits" else (3, 32, 32)))
    stages = agree(model, images, "sparse")
    layers = [stage for stage in stages if isinstance(stage, LinearStage) and stage.layer]
    kinds = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(layers) == len(kinds)
    shortcuts = 2 if name == "resnet20" else 0
    pools = sum(isinstance(stage, (Pool, Mean, Flatten)) for stage in stages)
    assert len(stages) == len(layers) + pools + shortcuts  # all else is folded


def test_the_kernel_of_each_layer_is_measured_or_forced() -> None:
    model, images = pruned(rp.create_model("digits"), 0.95), drawn(2, 1, 16, 16)
    for kernel in ("dense", "sparse"):
        forced = rp.accelerate(model, images, threads=1, kernels=kernel)
        assert forced.way == "planned"
        assert {layer.chosen for layer in forced.layers} == {kernel}
    fast = rp.accelerate(model, images)
    assert len(fast.layers) == sum(isinstance(m, (nn.Conv2d, nn.Linear)) for m in model.modules())
    for layer in fast.layers:
        assert layer.chosen == ("dense" if layer.dense < layer.sparse else "sparse")
    text = str(fast)
    assert "layer1.0.conv1" in text
    assert "times as fast" in text
    assert fast.to_dict()["layers"][0]["name"] == "conv1"


def test_a_shape_that_cannot_be_planned_runs_by_torch() -> None:
    body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    model = pruned(body)
    fast = rp.accelerate(model, drawn(2, 3, 8, 8), kernels="sparse")
    with torch.no_grad(), pytest.warns(UserWarning, match="runs by torch alone, since .* pools 9 x 9 to 2 x 2"):
        check_same(fast(drawn(1, 3, 9, 9)), model(drawn(1, 3, 9, 9)), "with another size")
    assert fast(drawn(2, 3, 8, 8)[:0]).shape == (0, 3)
    with pytest.raises(rp.InputError, match=r"does not take a batch of shape \(1, 5, 8, 8\) .*expected input"):
        fast(drawn(1, 5, 8, 8))


def test_other_shapes_are_planned_when_they_come() -> None:
    model = pruned(rp.create_model("digits"))
    fast = rp.accelerate(model, drawn(2, 1, 16, 16), threads=1, kernels="sparse")
    assert fast._engine is not None
    with torch.no_grad():
        for number in range(engine.SHAPES + 2):
            images = drawn(1 + number, 1, 16, 12 + 4 * (number % 3))
            check_same(fast(images), model(images), "on another shape")
            check_same(fast(images.to(memory_format=torch.channels_last)), model(images), "in another layout")
    assert len(fast._engine.executors) == engine.SHAPES


class Untraceable(nn.Module):
    """It looks at numbers, as routing does; one layer is called twice, one never, one lies under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.twice = nn.Linear(16, 16)
        self.never = nn.Linear(3, 3)
        self.shared = nn.ModuleList([self.twice])

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.conv(x).flatten(2).transpose(1, 2)
        if tokens.sum() > 1e9:
            return tokens
        return self.twice(torch.tanh(self.twice(tokens))) @ self.twice.weight


def test_a_network_that_cannot_be_traced_has_single_layers_replaced() -> None:
    model, images = pruned(Untraceable(), 0.9), drawn(2, 3, 10, 10)
    with pytest.raises(Unreadable, match=r"torch\.fx cannot trace"):
        read(model, images)
    fast = rp.accelerate(model, images, threads=1, kernels="sparse")
    assert fast.way == "layers"
    assert {layer.name: layer.chosen for layer in fast.layers} == {"conv": "sparse", "twice": "sparse"}
    assert "single layers replaced, since" in str(fast)
    with torch.no_grad():
        check_same(fast(images), model(images), "in the test")
        check_same(fast(images[:1]), model(images[:1]), "with another batch")
    dense = rp.accelerate(model, images, threads=1, kernels="dense")
    assert {layer.chosen for layer in dense.layers} == {"dense"}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4)

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"logits": self.linear(x) * scale}


def test_inputs_and_outputs_of_any_kind() -> None:
    model, x, scale = pruned(TwoInputs()), drawn(3, 5), drawn(3, 1, seed=1)
    fast = rp.accelerate(model, {"x": x, "scale": scale}, kernels="sparse")
    with torch.no_grad():
        check_same(fast(x=x, scale=scale)["logits"], model(x, scale)["logits"], "in the test")


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")), (1, 3, 8, 8), "pads with reflect"),
        (nn.Sequential(nn.Conv2d(3, 4, 2, padding="same")), (1, 3, 8, 8), "pads unevenly"),
        (nn.Sequential(nn.AvgPool2d(3, 2, 1, count_include_pad=False)), (1, 3, 8, 8), "pools in a way of its own"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(3)), (1, 3, 8, 8), "pools 8 x 8 to 3 x 3"),
        (nn.Sequential(nn.GELU()), (1, 3), "is GELU"),
        (nn.Sequential(nn.Flatten(0)), (2, 3), "has shape"),
        (nn.Sequential(nn.Linear(3, 3)), (2, 2, 3), "has 3 dimensions"),
    ],
)
def test_what_stages_cannot_say_is_named(model: nn.Module, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        Layouts(read(evaluation_mode_(model), drawn(*shape)), kernels.LANES)


def test_refusals() -> None:
    model, images = pruned(rp.create_model("digits")), drawn(1, 1, 16, 16)
    with pytest.raises(rp.InputError, match="threads must be at least 1, not 0"):
        rp.accelerate(model, images, threads=0)
    with pytest.raises(rp.InputError, match="unknown choice of kernels 'spars'; did you mean sparse"):
        rp.accelerate(model, images, kernels="spars")
    with pytest.raises(rp.InputError, match="computes in float32; this tensor is torch.float64"):
        rp.accelerate(copy.deepcopy(model).double(), images)
    with pytest.raises(rp.InputError, match=r"must be a torch\.nn\.Module"):
        rp.accelerate("digits", images)  # type: ignore[arg-type]
    for example, words in ((None, "NoneType"), (images[:0], "this is of shape (0, 1, 16, 16)")):
        with pytest.raises(rp.InputError, match=re.escape(words)):
            rp.accelerate(model, example)
    with pytest.raises(rp.InputError, match=r"DigitsResNet does not take a batch of shape \(1, 16, 16\) .*expected 4D"):
        rp.accelerate(model, images[0])
    fast = rp.accelerate(model, images, kernels="sparse")
    with pytest.raises(rp.InputError, match="for inference; train the one it was made of"):
        fast.train()
    assert fast.eval() is fast
    with pytest.raises(rp.InputError, match="this tensor is torch.float16"):
        fast(images.half())
    with pytest.raises(rp.InputError, match="no gradients"):
        fast(images.clone().requires_grad_())
    with torch.no_grad():
        fast(images.clone().requires_grad_())
    with pytest.raises(rp.InputError, match="on meta"):
        fast(images.to("meta"))
    made = "DigitsResNet, accelerated for a batch of shape (1, 1, 16, 16) (torch.float32), does not take a batch of "
    for batch, words in (
        (None, "NoneType"),
        (drawn(2, 3, 16, 16), "shape (2, 3, 16, 16)"),
        (images[0], "shape (1, 16"),
    ):
        with pytest.raises(rp.InputError, match=re.escape(made + words)):
            fast(batch)
    with pytest.raises(rp.InputError, match=re.escape(f"{made}[shape (1, 1, 16, 16)")):
        fast(images, images)


def test_the_model_is_untouched_and_may_change_later() -> None:
    model, images = pruned(rp.create_model("digits")), drawn(2, 1, 16, 16)
    model.train()
    digest, state = state_digest(model), torch.get_rng_state()
    fast = rp.accelerate(model, images, kernels="sparse")
    assert model.training
    assert state_digest(model) == digest
    assert torch.equal(torch.get_rng_state(), state)
    before = fast(images)
    with torch.no_grad():
        model.fc.weight.zero_()  # type: ignore[union-attr, operator]
    assert torch.equal(fast(images), before)


def test_a_wrong_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = pruned(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1))), drawn(1, 3, 8, 8)
    real = Phases.tap
    monkeypatch.setattr(Executor, "__call__", lambda self, batch: torch.zeros(self.out))
    with pytest.raises(WrongAnswer, match="off where the largest output"), torch.no_grad():
        Engine(model, images, 1)
    assert real is Phases.tap
    with pytest.raises(WrongAnswer, match="in shape"):
        check_same(drawn(2), drawn(3), "here")
    with pytest.raises(WrongAnswer):
        check_same(torch.tensor([float("nan")]), torch.ones(1), "here")


def test_packing_counts_every_weight_once() -> None:
    weight = (drawn(8, 12, 9) * (drawn(8, 12, 9, seed=1) > 0.5)).numpy()
    taps = torch.arange(9).numpy()
    sparse = pack_sparse(weight, taps, 100, 1, 16 * 1024)
    assert sparse.blocks == min(6, (weight != 0).sum() // 8 // 10) > 1
    assert sparse.lists[:, 2].sum() == (weight != 0).sum() == len(sparse.values)
    dense = pack_dense(weight, taps, 100, 4, 16 * 1024)
    assert (dense.groups, dense.blocks) == (2, 6)
    assert dense.lists[:, 2].sum() * 4 == weight.size == len(dense.values)
    assert rounded(17, 16) == 32


def test_without_numba_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["numba"] = None
import torch, repairability as rp
try:
    rp.accelerate(torch.nn.Linear(2, 2), torch.zeros(1, 2))
except rp.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'repairability[runtime]'" in done.stdout


class Pair(nn.Module):
    """Two outputs behind a BatchNorm that folds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = self.norm(self.conv(x)).relu()
        return self.head(y).mean((2, 3)), {"map": y}


def test_several_outputs_of_one_tensor(tmp_path: Path) -> None:
    model, images = pruned(Pair()).eval(), drawn(5, 3, 8, 8)
    fast, small = rp.accelerate(model, images, kernels="sparse"), rp.compact(model, images, fold_norms=True)
    expected = model(images)
    for given in (fast(images), small.model(images)):
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in small.model.modules())
    rp.export_onnx(model, images, tmp_path / "pair.onnx")
