"""Products: whichever function multiplies by a layer's weight, filters @ columns + bias is what it gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repairability.network.calls import Call
from repairability.network.candidates import candidates
from repairability.network.layers import Layer, part_of
from repairability.network.watching import Watching

N = 3


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def watched(
    model: nn.Module, *args: Any, layers: list[Layer] | None = None, **kwargs: Any
) -> tuple[Any, list[tuple[Call, Tensor]]]:
    """What the model gives while it is watched, and every product with what it gave."""
    seen: list[tuple[Call, Tensor]] = []

    def handle(call: Call) -> Tensor:
        output = call.compute()
        seen.append((call, output))
        return output

    every = [x.layer for x in candidates(model)] if layers is None else layers
    with torch.no_grad(), Watching(model, every, handle, samples=N):
        return model(*args, **kwargs), seen


def assert_product(call: Call, output: Tensor) -> None:
    """filters @ columns + bias, as [C, positions * N], the sample fastest."""
    geometry, filters = call.geometry, call.layer.filters()
    columns = geometry.unfold(call.inputs(), geometry.every_tap())
    product = (filters @ columns.view(len(filters), filters.shape[2], -1)).flatten(0, 1)
    if call.bias is not None:
        product = product + call.bias.detach()[:, None]
    channels = call.channels(output)
    assert channels.shape[:2] == (len(call.inputs()), call.layer.outputs)
    torch.testing.assert_close(product, channels.permute(1, 2, 0).flatten(1))


def assert_seen(model: nn.Module, *args: Any, names: tuple[str, ...] = ("",), **kwargs: Any) -> None:
    """The model gives what it always gives, and each of these layers was seen once, sample by sample."""
    model.double()
    with torch.no_grad():
        expected = model(*args, **kwargs)
    given, seen = watched(model, *args, **kwargs)
    torch.testing.assert_close(given, expected, atol=1e-6, rtol=1e-6)
    assert [call.layer.name for call, _ in seen] == list(names)
    for call, output in seen:
        assert len(call.inputs()) == N
        assert_product(call, output)


CONVOLUTIONS = [
    (nn.Conv1d(4, 6, 3), (4, 9)),
    (nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2, bias=False), (4, 9)),
    (nn.Conv1d(4, 6, 4, padding="same"), (4, 9)),
    (nn.Conv1d(4, 6, 3, padding=2, padding_mode="circular"), (4, 9)),
    (nn.Conv2d(4, 6, 3, padding=1), (4, 7, 6)),
    (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(2, 1), groups=2), (4, 9, 8)),
    (nn.Conv2d(4, 4, 3, padding="same", groups=4), (4, 7, 6)),
    (nn.Conv2d(4, 6, 3, padding="same", padding_mode="circular"), (4, 7, 6)),
    (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (4, 7, 6)),
    (nn.Conv2d(4, 6, 3, padding="valid", bias=False), (4, 7, 6)),
    (nn.Conv3d(2, 4, 3, padding=1), (2, 4, 3, 5)),
    (nn.Conv3d(2, 4, (1, 2, 3), stride=(1, 2, 1), groups=2, padding_mode="circular", padding=1), (2, 4, 3, 5)),
    (nn.ConvTranspose1d(4, 6, 3), (4, 5)),
    (nn.ConvTranspose1d(4, 6, 4, stride=2, padding=1, groups=2), (4, 5)),
    (nn.ConvTranspose2d(4, 6, 2, stride=2, bias=False), (4, 5, 4)),
    (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (4, 5, 4)),
    (
        nn.ConvTranspose2d(4, 6, (3, 2), stride=(1, 3), padding=(0, 1), output_padding=(0, 2), dilation=(2, 1)),
        (4, 5, 4),
    ),
    (nn.ConvTranspose2d(4, 4, 3, padding=3, groups=4), (4, 9, 8)),
    (nn.ConvTranspose3d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2), (2, 3, 3, 2)),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS, ids=lambda x: str(x) if isinstance(x, nn.Module) else "")
def test_convolutions(layer: nn.Module, shape: tuple[int, ...]) -> None:
    assert_seen(layer, randn(N, *shape))


def test_one_image_without_its_batch() -> None:
    layer = nn.Conv2d(4, 6, 3, padding=1).double()
    _, ((call, output),) = watched(layer, randn(4, 7, 6))
    assert call.inputs().shape == (1, 4, 7, 6)
    assert_product(call, output)


class Functional(nn.Module):
    """A weight that is used in a way of its own; its module's forward is never called."""

    def __init__(self, use: Any, bias: bool = True) -> None:
        super().__init__()
        self.fc, self.use = nn.Linear(4, 6, bias=bias), use

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.use(x, self.fc)
        return out


LINEAR = {
    "F.linear": lambda x, fc: F.linear(x, fc.weight, fc.bias),
    "F.linear by name": lambda x, fc: F.linear(input=x, weight=fc.weight, bias=fc.bias),
    "F.linear without its bias": lambda x, fc: F.linear(x, fc.weight),
    "x @ W.T": lambda x, fc: x @ fc.weight.T + fc.bias,
    "x @ W.t()": lambda x, fc: x @ fc.weight.t(),
    "x @ W.mT": lambda x, fc: x @ fc.weight.mT,
    "matmul": lambda x, fc: torch.matmul(x, fc.weight.transpose(0, 1)),
    "x.matmul": lambda x, fc: x.matmul(fc.weight.T),
}


@pytest.mark.parametrize("shape", [(N, 4), (N, 5, 4), (N, 2, 5, 4)])
@pytest.mark.parametrize("use", LINEAR.values(), ids=LINEAR.keys())
def test_linear_however_it_is_written(use: Any, shape: tuple[int, ...]) -> None:
    assert_seen(nn.Linear(4, 6), randn(*shape))
    assert_seen(nn.Linear(4, 6, bias=False), randn(*shape))
    assert_seen(Functional(use), randn(*shape), names=("fc",))


def test_matrices_only() -> None:
    assert_seen(Functional(lambda x, fc: torch.mm(x, fc.weight.T)), randn(N, 4), names=("fc",))
    assert_seen(Functional(lambda x, fc: torch.addmm(fc.bias, x, fc.weight.T)), randn(N, 4), names=("fc",))


def test_the_time_may_come_before_the_sample() -> None:
    """[T, N, C], as nn.Transformer takes it."""
    layer = nn.Linear(4, 6).double()
    _, ((call, output),) = watched(layer, randn(5, N, 4))
    assert call.inputs().shape == (N, 4, 5)
    assert_product(call, output)


class Square(nn.Module):
    """One weight, forward and back: what is a row once is a column the other time."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x)
        return out @ self.fc.weight


def test_a_weight_in_the_other_direction_is_another_product() -> None:
    """W used as [in, out] has other filters than W as [out, in]: not the same layer, and never silently taken so."""
    _, seen = watched(Square().double(), randn(N, 4))
    assert len(seen) == 1
    assert_product(*seen[0])


class Conv1D(nn.Module):
    """As in transformers: a Linear whose weight is [in, out]."""

    def __init__(self) -> None:
        super().__init__()
        self.nf, self.weight, self.bias = 6, nn.Parameter(randn(4, 6)), nn.Parameter(randn(6))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return rows.view(*x.shape[:-1], self.nf)


Conv1D.__module__, Conv1D.__qualname__ = "transformers.pytorch_utils", "Conv1D"


@pytest.mark.parametrize("shape", [(N, 4), (N, 5, 4)])
def test_a_bias_and_a_matrix(shape: tuple[int, ...]) -> None:
    assert_seen(Conv1D(), randn(*shape))


def test_a_scaled_sum_is_no_plain_product() -> None:
    for use in (
        lambda x, fc: torch.addmm(fc.bias, x, fc.weight.T, alpha=2),
        lambda x, fc: torch.addmm(fc.bias, x, fc.weight.T, beta=0.5),
        lambda x, fc: torch.addmm(torch.ones(N, 6).double(), x, fc.weight.T),  # a bias of its own for each row
    ):
        model = Functional(use).double()
        given, seen = watched(model, randn(N, 4))
        assert not seen
        torch.testing.assert_close(given, model(randn(N, 4)))


class Experts(nn.Module):
    """A batch of matrices, each of them a layer."""

    def __init__(self, use: Any, shape: tuple[int, ...] = (2, 4, 6)) -> None:
        super().__init__()
        self.weights, self.use = nn.Parameter(randn(*shape)), use

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.use(x, self.weights)
        return out

    def layers(self, kind: str = "matrix") -> list[Layer]:
        return [
            Layer(f"weights.{i}", kind, part_of(self.weights, i), parameter="weights", part=i)
            for i in range(len(self.weights))
        ]


@pytest.mark.parametrize(
    ("use", "kind", "shape"),
    [
        (torch.bmm, "matrix", (2, 4, 6)),
        (torch.matmul, "matrix", (2, 4, 6)),
        (lambda x, w: x @ w.mT, "linear", (2, 6, 4)),
        (lambda x, w: torch.baddbmm(torch.ones(2, 1, 6).double(), x, w), "matrix", (2, 4, 6)),
        (lambda x, w: torch.stack([x[i] @ w[i] for i in range(2)]), "matrix", (2, 4, 6)),
        (lambda x, w: torch.stack([F.linear(x[i], w[i]) for i in range(2)]), "linear", (2, 6, 4)),
    ],
)
def test_a_batch_of_matrices(use: Any, kind: str, shape: tuple[int, ...]) -> None:
    model = Experts(use, shape)
    given, seen = watched(model, randn(2, 5, 4), layers=model.layers(kind))
    with torch.no_grad():
        torch.testing.assert_close(given, model(randn(2, 5, 4)))
    assert [call.layer.name for call, _ in seen] == ["weights.0", "weights.1"]
    for call, output in seen:
        assert_product(call, output)


def test_a_batch_of_matrices_that_meets_one_input() -> None:
    """[1, T, C] @ [E, C, D], and [B, E, T, C]: torch makes them fit each other."""
    model = Experts(torch.matmul)
    for x in (randn(1, 5, 4), randn(5, 4), randn(2, 2, 5, 4)):
        given, _ = watched(model, x, layers=model.layers())
        with torch.no_grad():
            torch.testing.assert_close(given, model(x))


PACKED = ("in_proj_weight.q", "in_proj_weight.k", "in_proj_weight.v", "out_proj")
SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj")
PADDED = torch.tensor([[False] * 7, [False] * 4 + [True] * 3, [False] * 7])
CAUSAL = torch.ones(5, 7, dtype=torch.bool).triu(3)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"kdim": 6, "vdim": 5}, {"bias": False}, {"add_bias_kv": True, "add_zero_attn": True}]
)
@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"need_weights": False},
        {"key_padding_mask": PADDED},
        {"attn_mask": CAUSAL, "average_attn_weights": False},
        {"attn_mask": CAUSAL.double().mul(-1e3), "key_padding_mask": PADDED.double(), "need_weights": False},
    ],
)
def test_attention(options: dict[str, Any], masks: dict[str, Any], batch_first: bool, training: bool) -> None:
    """Its projections are products of their own, and what it gives is what it always gives."""
    model = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options).train(training)
    tokens = [randn(5, N, 8), randn(7, N, options.get("kdim", 8)), randn(7, N, options.get("vdim", 8))]
    if batch_first:
        tokens = [x.transpose(0, 1) for x in tokens]
    assert_seen(model, *tokens, names=SEPARATE if "kdim" in options else PACKED, **masks)


def test_self_attention_and_one_sequence_without_its_batch() -> None:
    model = nn.MultiheadAttention(8, 2).double().eval()
    x = randn(5, 8)
    with torch.no_grad():
        expected, _ = model(x, x, x)
    (given, _), seen = watched(model, x, x, x)
    torch.testing.assert_close(given, expected)
    assert len(seen) == 4
    for call, output in seen:
        assert_product(call, output)


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_does_not_take_its_fast_path_past_us(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first).eval()
    names = (*(f"self_attn.{name}" for name in PACKED), "linear1", "linear2")
    assert_seen(layer, randn(N, 5, 8), names=names)
