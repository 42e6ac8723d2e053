from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from networks import Residual, Twice
from repairability import InputError, prunable_layers
from repairability.network.batches import PROBE
from repairability.network.flat import Flat
from repairability.network.trace import trace
from repairability.network.unfold import Geometry

pytestmark = pytest.mark.usefixtures("quiet")


def test_order_calls_inputs_and_norms() -> None:
    net = Residual()
    found = trace(net, prunable_layers(net), torch.randn(2, 3, 8, 8))
    assert found.order == ("conv1", "depthwise", "shortcut", "conv2")
    assert found.calls == dict.fromkeys(found.order, 1)
    assert found.norms == {"conv1": "bn1", "depthwise": "bn2", "shortcut": "bn3", "conv2": "bn4"}
    assert found.own_norms == found.norms
    assert found.shiftable == frozenset(found.order)  # by a bias, or by the BatchNorm behind
    assert set(found.biases) == {"conv1", "conv2"}
    assert found.geometries["conv1"] == Geometry.convolution((3, 3), stride=2, padding=1, groups=4)
    assert found.inputs["conv1"] == (2, 8, 8, 8)  # as many samples as there are, up to PROBE


def test_execution_order_is_not_definition_order() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.second, self.first = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(input=self.stem(x)))  # also: a keyword argument

    net = Backwards()
    assert trace(net, prunable_layers(net), torch.randn(1, 1, 2, 2)).order == ("first", "second")


def test_repeated_and_unreached_layers() -> None:
    net = Twice()
    with pytest.raises(InputError, match="the model never reaches unused on these images"):
        trace(net, prunable_layers(net), torch.randn(1, 3, 4, 4))
    found = trace(net, prunable_layers(net, skip=("@first", "unused")), torch.randn(1, 3, 4, 4))
    assert found.calls == {"body": 2, "last": 1}


class OnDemand(nn.Module):
    """A layer that only some samples reach, as experts are."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.rare = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.stem(x))
        wanted = x.mean((1, 2, 3)) > 0
        if wanted.any():
            out = out.clone()
            out[wanted] = self.rare(out[wanted])
        return out


def test_a_few_samples_show_the_way_and_all_of_them_where_those_do_not() -> None:
    net = OnDemand()
    layers = prunable_layers(net, skip=("@first",))
    images = -torch.ones(20, 1, 2, 2)
    assert trace(net, prunable_layers(net, only=("body",)), images).inputs["body"] == (PROBE, 1, 2, 2)
    assert trace(net, layers, images, needed=("body",)).order == ("body",)
    with pytest.raises(InputError, match="the model never reaches rare on these images"):
        trace(net, layers, images)
    images[-1] = 1
    found = trace(net, layers, images)
    assert found.order == ("body", "rare")
    assert found.inputs == {"body": (20, 1, 2, 2), "rare": (1, 1, 2, 2)}


def test_a_batch_norm_that_several_layers_use_is_nobodys_own() -> None:
    class SharedNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b = (nn.Conv2d(2, 2, 1, bias=False) for _ in range(3))
            self.norm, self.own = nn.BatchNorm2d(2), nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.a(self.norm(self.stem(x))))
            out: Tensor = self.own(self.b(x))
            return out

    net = SharedNorm()
    found = trace(net, prunable_layers(net), torch.randn(3, 2, 4, 4))
    assert found.norms == {"a": "norm", "b": "own"}
    assert found.own_norms == {"b": "own"}
    assert found.shiftable == {"b"}
    assert not found.biases


# --- activations with flat ends ------------------------------------------------------------------------------------


class Block(nn.Module):
    """Two convolutions and norms; `way(self, x)` says how they are connected."""

    def __init__(self, way: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.stem, self.conv, self.other = (nn.Conv2d(3, 3, 1) for _ in range(3))
        self.norm, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.linear = nn.Linear(4, 4)
        self.way = way

    def forward(self, x: Tensor) -> Any:
        return self.way(self, self.stem(x))


def flat_behind(way: Callable[[Any, Tensor], Any], layer: str = "conv") -> Flat | None:
    """Behind one layer of a block, in a pass that is seen as it is."""
    block = Block(way)
    layers = prunable_layers(block, skip=("@first",), types=("conv", "linear"))
    return trace(block, layers, torch.randn(2, 3, 4, 4), needed=(layer,)).flats.get(layer)


RELU = Flat(0.0, math.inf)

SINGLE = {
    "method": (lambda b, x: b.norm(b.conv(x)).relu(), RELU),
    "function": (lambda b, x: F.relu(b.norm(b.conv(x))), RELU),
    "in place, as a function": (lambda b, x: F.relu(b.norm(b.conv(x)), inplace=True), RELU),
    "in place": (lambda b, x: b.norm(b.conv(x)).relu_(), RELU),
    "torch": (lambda b, x: torch.relu(b.norm(b.conv(x))), RELU),
    "by name": (lambda b, x: F.relu(input=b.norm(b.conv(x))), RELU),
    "module": (lambda b, x: nn.ReLU(inplace=True)(b.norm(b.conv(x))), RELU),
    "no norm": (lambda b, x: b.conv(x).relu(), RELU),
    "relu6": (lambda b, x: F.relu6(b.norm(b.conv(x))), Flat(0.0, 6.0)),
    "relu6 module": (lambda b, x: nn.ReLU6(inplace=True)(b.conv(x)), Flat(0.0, 6.0)),
    "hardtanh": (lambda b, x: F.hardtanh(b.conv(x)), Flat(-1.0, 1.0)),
    "hardtanh module": (lambda b, x: nn.Hardtanh(-2, 3)(b.conv(x)), Flat(-2.0, 3.0)),
    "hardtanh by name": (lambda b, x: F.hardtanh(b.conv(x), max_val=4.0), Flat(-1.0, 4.0)),
    "clamp": (lambda b, x: b.conv(x).clamp(0, 5), Flat(0.0, 5.0)),
    "clamp by name": (lambda b, x: torch.clamp(b.conv(x), max=2), Flat(-math.inf, 2.0)),
    "clamp in place": (lambda b, x: b.conv(x).clamp_(min=0), RELU),
    "clip": (lambda b, x: b.conv(x).clip(-1, None), Flat(-1.0, math.inf)),
    "hardswish": (lambda b, x: F.hardswish(b.conv(x)), Flat(-3.0, math.inf)),
    "hardsigmoid": (lambda b, x: nn.Hardsigmoid()(b.conv(x)), Flat(-3.0, 3.0)),
    "looked at": (lambda b, x: (lambda y: y.relu() if y.shape[0] and y.dim() == 4 and len(y) else y)(b.conv(x)), RELU),
    "clamp by a tensor": (lambda b, x: b.conv(x).clamp(torch.zeros(()), None), None),
    "gelu": (lambda b, x: F.gelu(b.conv(x)), None),
    "leaky": (lambda b, x: F.leaky_relu(b.conv(x)), None),
    "reshaped before": (lambda b, x: b.conv(x).flatten(2).relu(), None),
    "nothing": (lambda b, x: b.norm(b.conv(x)), None),
}


@pytest.mark.parametrize("way", SINGLE)
def test_the_activation_behind_a_layer(way: str) -> None:
    run, expected = SINGLE[way]
    assert flat_behind(run) == expected


def added_in_place(block: Any, x: Tensor) -> Tensor:
    y = block.norm(block.conv(x))
    y += x
    return F.relu(y, inplace=True)


SUMMED = {
    "added": lambda b, x: (b.norm(b.conv(x)) + x).relu(),
    "added from the other side": lambda b, x: (x + b.norm(b.conv(x))).relu(),
    "added in place": added_in_place,
    "torch.add": lambda b, x: F.relu(torch.add(b.norm(b.conv(x)), x)),
    "no norm": lambda b, x: (b.conv(x) + x).relu_(),
}


@pytest.mark.parametrize("way", SUMMED)
def test_the_activation_behind_a_sum(way: str) -> None:
    assert flat_behind(SUMMED[way]) == Flat(0.0, math.inf, summed=True)


def and_itself(block: Any, x: Tensor) -> Tensor:
    y = block.norm(block.conv(x))
    return y.relu() + y


def before_its_norm(block: Any, x: Tensor) -> Tensor:
    y = block.conv(x)
    return block.norm(y).relu() + y.mean()


def two_sums(block: Any, x: Tensor) -> Tensor:
    y = block.norm(block.conv(x))
    return (y + x).relu() * (y + 2 * x)


def sum_goes_on(block: Any, x: Tensor) -> Tensor:
    y = block.norm(block.conv(x)) + x
    return block.other(y.relu()) + y


def put_out(block: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = block.norm(block.conv(x))
    return y.relu(), y


def sum_put_out(block: Any, x: Tensor) -> dict[str, Tensor]:
    y = block.norm(block.conv(x)) + x
    return {"features": y, "out": y.relu()}


def two_norms(block: Any, x: Tensor) -> Tensor:
    y = block.conv(x)
    return block.norm(y).relu() + block.second(y).relu()


def relus(block: Any, x: Tensor) -> Tensor:
    y = block.conv(x)
    return y.relu() - (-y).relu()


FELT = {
    "used beside": lambda b, x: (lambda y: y.relu() * y.sigmoid())(b.conv(x)),
    "added to its own activation": and_itself,
    "used before its norm": before_its_norm,
    "two sums": two_sums,
    "the sum goes on": sum_goes_on,
    "put out": put_out,
    "the sum is put out": sum_put_out,
    "two norms": two_norms,
    "of either sign": relus,
    "shared norm": lambda b, x: b.norm(b.other(b.norm(b.conv(x)).relu())).relu(),
    "called twice": lambda b, x: b.conv(b.conv(x).relu()).relu(),
    "pre-activation": lambda b, x: b.conv(b.norm(x).relu()) + x,
    "pre-activation, norm behind the sum": lambda b, x: b.norm(b.conv(x) + x).relu(),
}


@pytest.mark.parametrize("way", FELT)
def test_what_is_felt_beside_the_activation_has_no_flat_ends(way: str) -> None:
    assert flat_behind(FELT[way]) is None


def test_only_the_branch_that_ends_last_knows_its_sum() -> None:
    def way(block: Any, x: Tensor) -> Any:
        return (block.norm(block.conv(x)) + block.second(block.other(x))).relu()

    assert flat_behind(way, "conv") is None
    assert flat_behind(way, "other") == Flat(0.0, math.inf, summed=True)


def test_a_linear_layer_and_its_activation() -> None:
    assert flat_behind(lambda b, x: b.linear(x).relu(), "linear") == RELU


def test_flats_of_a_resnet(resnet18: nn.Module) -> None:
    layers = prunable_layers(resnet18, types=("conv", "linear"), skip=())
    flats = trace(resnet18, layers, torch.randn(1, 3, 32, 32)).flats
    summed = {name for name, flat in flats.items() if flat.summed}
    assert all(flat.low == 0 and flat.high == math.inf for flat in flats.values())
    assert {name for name in flats if name.endswith("conv1")} >= {f"layer{i}.{j}.conv1" for i in (1, 2) for j in (0, 1)}
    straight = {f"layer{i}.{j}.conv2" for i in range(1, 5) for j in range(2) if i == 1 or j == 1}
    assert summed == straight | {f"layer{i}.0.downsample.0" for i in (2, 3, 4)}
    assert "fc" not in flats


def test_what_stands_behind_a_sum_is_not_the_layers_own() -> None:
    """A norm behind it takes the other branch too; and a second sum adds to both."""
    block = Block(lambda b, x: (b.norm(b.conv(x) + x) + b.other(x)) + x)
    layers = prunable_layers(block, skip=("@first",), only=("conv", "other"))
    found = trace(block, layers, torch.randn(2, 3, 4, 4))
    assert found.norms == found.own_norms == {}
    assert {number: join.layer for number, join in found.joins.items()} == {0: "conv", 1: "other"}


class Applied(nn.Module):
    """Two convolutions, and a function between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.stem, self.body, self.between = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), between

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.between(self.stem(x)))
        return out


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("draws", "between"),
    [
        (False, torch.relu),
        (False, nn.Dropout(0.5)),  # in eval mode
        (False, lambda x: F.scaled_dot_product_attention(x, x, x)),
        (True, lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)),
        (True, lambda x: F.dropout(x, 0.5, True)),
        (True, lambda x: x + torch.rand(1)),
        (True, lambda x: x.bernoulli(0.5)),
    ],
    ids=["relu", "dropout", "attention", "dropped attention", "dropped", "rand", "bernoulli"],
)
def test_whether_it_draws_random_numbers(draws: bool, between: Callable[[Tensor], Tensor], seed: int) -> None:
    """Whatever the caller's random state is."""
    torch.manual_seed(seed)
    model = Applied(between)
    torch.manual_seed(seed)
    assert trace(model, prunable_layers(model), torch.randn(2, 3, 8, 8)).draws is draws
