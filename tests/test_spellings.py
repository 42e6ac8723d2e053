"""One network, written in several ways, is diagnosed, pruned and repaired alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import repairability as rp
from repairability import PruneConfig
from repairability.network.unfold import Geometry
from test_readers import Conv1D

pytestmark = pytest.mark.usefixtures("quiet")

RECIPES = [
    *(("magnitude", repair) for repair in ("none", "cr", "cr-simultaneous", "affine", "affine-moments")),
    *(("magnitude", repair) for repair in ("reconstruct", "reconstruct-all", "cr+bn-short", "reconstruct+bn-short")),
    *(("second_order", repair) for repair in ("cr", "reconstruct", "reconstruct-all")),
    ("activation", "reconstruct"),
]
CONFIG = PruneConfig(count=40, batch_size=16, skip=())

Reader = Callable[[nn.Module], dict[str, Tensor]]
"""All that a network learned, by the names and in the layout of the first spelling."""


def assert_alike(one: nn.Module, other: nn.Module, read: Reader, x: Tensor, score: str, repair: str) -> None:
    with torch.no_grad():
        torch.testing.assert_close(one.eval()(x), other.eval()(x))
    found, again = (
        rp.prune(model, x, sparsity=0.6, rule="uniform", score=score, repair=repair, config=CONFIG)
        for model in (one, other)
    )
    expected, given = dict(found.model.named_parameters()), read(again.model)
    assert set(given) == set(expected)
    for name, tensor in given.items():
        assert torch.equal(tensor == 0, expected[name] == 0), name
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-8, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(found.model.eval()(x), again.model.eval()(x), rtol=1e-6, atol=1e-8)


def assert_diagnosed_alike(one: nn.Module, other: nn.Module, names: dict[str, str], x: Tensor) -> None:
    """`names`: a layer of the one -> the same layer of the other."""
    for repair in ("none", "cr", "affine", "reconstruct"):
        found, again = (
            rp.diagnose(model, rp.CalibrationSet(x, 40), grid=(0.5, 0.9), repair=repair) for model in (one, other)
        )
        for here, there in names.items():
            np.testing.assert_allclose(found.raw[here], again.raw[there], rtol=1e-6)
            np.testing.assert_allclose(found.rr[here], again.rr[there], rtol=1e-6)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# --- linear ----------------------------------------------------------------------------------------------------------


class Modules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 9), nn.Linear(9, 7), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c(self.b(self.a(x).relu()).relu())
        return out


class Matrices(nn.Module):
    """As transformers' GPT-2."""

    def __init__(self, like: Modules) -> None:
        super().__init__()
        self.a, self.b, self.c = Conv1D(), Conv1D(), Conv1D()
        for name, module in like.named_children():
            mine = self.get_submodule(name)
            mine.nf = module.out_features  # type: ignore[assignment]
            mine.weight = nn.Parameter(module.weight.detach().T.clone())  # type: ignore[operator]
            mine.bias = nn.Parameter(module.bias.detach().clone())  # type: ignore[operator]

    forward = Modules.forward


def read_matrices(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.T if name.endswith("weight") else tensor for name, tensor in model.named_parameters()}


class Bare(nn.Module):
    """No module owns a weight."""

    def __init__(self, like: Modules) -> None:
        super().__init__()
        for name, tensor in like.named_parameters():
            self.register_parameter(name.replace(".", "_"), nn.Parameter(tensor.detach().clone()))

    def forward(self, x: Tensor) -> Tensor:
        for name in "abc":
            x = F.linear(x, self.get_parameter(f"{name}_weight"), self.get_parameter(f"{name}_bias"))
            x = x if name == "c" else x.relu()
        return x


def read_bare(model: nn.Module) -> dict[str, Tensor]:
    return {name.replace("_", "."): tensor for name, tensor in model.named_parameters()}


@pytest.mark.parametrize("shape", [(80, 6), (80, 3, 6)])
@pytest.mark.parametrize(("score", "repair"), RECIPES)
def test_a_matrix_the_other_way_round(score: str, repair: str, shape: tuple[int, ...]) -> None:
    one = Modules().double()
    assert_alike(one, Matrices(one), read_matrices, randn(*shape), score, repair)


@pytest.mark.parametrize(("score", "repair"), RECIPES)
def test_a_parameter_without_a_module(score: str, repair: str) -> None:
    one = Modules().double()
    assert_alike(one, Bare(one), read_bare, randn(80, 3, 6), score, repair)


def test_linear_layers_are_diagnosed_alike() -> None:
    one = Modules().double()
    assert_diagnosed_alike(one, Matrices(one), {"a": "a", "b": "b"}, randn(80, 3, 6))
    names = {"a": "a_weight", "b": "b_weight"}
    assert_diagnosed_alike(one, Bare(one), names, randn(80, 3, 6))


# --- transposed convolutions -----------------------------------------------------------------------------------------


class Decoder(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.up = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, bias=not norm)
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.last = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.up(self.stem(x))).relu())
        return out


class Spread(nn.Module):
    """The same with a convolution over the input with zeros between its values."""

    def __init__(self, like: Decoder) -> None:
        super().__init__()
        self.geometry = Geometry.transposed((3, 3), 2, 1, 1, 2)
        self.stem, self.norm, self.last = like.stem, like.norm, like.last
        self.up = nn.Conv2d(4, 6, 3, groups=2, bias=like.up.bias is not None).double()
        with torch.no_grad():
            self.up.weight.copy_(turned(like.up.weight))
            if self.up.bias is not None:
                self.up.bias.copy_(like.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.geometry.padded(self.geometry.batched(self.stem(x)))
        out: Tensor = self.last(self.norm(self.up(x)).relu())
        return out


def turned(weight: Tensor) -> Tensor:
    """[in, out / 2, 3, 3] of a transposed convolution <-> [out, in / 2, 3, 3] of a convolution, in two groups."""
    return torch.cat([part.transpose(0, 1) for part in weight.chunk(2)]).flip((2, 3))


def read_spread(model: nn.Module) -> dict[str, Tensor]:
    return {name: turned(tensor) if name == "up.weight" else tensor for name, tensor in model.named_parameters()}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("score", "repair"), RECIPES)
def test_a_transposed_convolution(score: str, repair: str, norm: bool) -> None:
    one = Decoder(norm).double()
    assert_alike(one, Spread(one), read_spread, randn(80, 3, 6, 6), score, repair)


@pytest.mark.parametrize("norm", [False, True])
def test_transposed_convolutions_are_diagnosed_alike(norm: bool) -> None:
    one = Decoder(norm).double()
    assert_diagnosed_alike(one, Spread(one), {"up": "up", "last": "last"}, randn(80, 3, 6, 6))


# --- attention -------------------------------------------------------------------------------------------------------


class ByHand(nn.Module):
    """Attention with four linear layers."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        out: Tensor = self.head((x + self.out((weights @ v).transpose(1, 2).flatten(2))).mean(1))
        return out


class Packed(nn.Module):
    """The same by PyTorch's own module."""

    def __init__(self, like: ByHand) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, like.heads, batch_first=True).double(), like.head
        with torch.no_grad():
            self.attention.in_proj_weight.copy_(torch.cat([like.q.weight, like.k.weight, like.v.weight]))
            self.attention.in_proj_bias.copy_(torch.cat([like.q.bias, like.k.bias, like.v.bias]))
            self.attention.out_proj.load_state_dict(like.out.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))
        return out


def read_packed(model: nn.Module) -> dict[str, Tensor]:
    tensors = dict(model.named_parameters())
    found = {name: tensors[name] for name in ("head.weight", "head.bias")}
    for part in ("weight", "bias"):
        found[f"out.{part}"] = tensors[f"attention.out_proj.{part}"]
        found |= {f"{x}.{part}": y for x, y in zip("qkv", tensors[f"attention.in_proj_{part}"].chunk(3), strict=True)}
    return found


@pytest.mark.parametrize(("score", "repair"), RECIPES)
def test_attention(score: str, repair: str) -> None:
    one = ByHand().double()
    assert_alike(one, Packed(one), read_packed, randn(80, 5, 8), score, repair)


def test_attention_is_diagnosed_alike() -> None:
    one = ByHand().double()
    names = {**{x: f"attention.in_proj_weight.{x}" for x in "qkv"}, "out": "attention.out_proj"}
    assert_diagnosed_alike(one, Packed(one), names, randn(80, 5, 8))
