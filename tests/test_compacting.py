"""compact: the same outputs from a smaller network; what goes, what stays and why, on networks made by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from repairability import InputError, compact, create_model
from repairability.deploy import Compacted
from test_folding import trained
from test_sacred import complete_state, same

pytestmark = pytest.mark.usefixtures("quiet")
IMAGES = torch.randn(3, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def checked(model: nn.Module, example: Tensor = IMAGES, **options: bool) -> Compacted:
    """Compacted, with the same outputs on other inputs too, other sizes of batch among them; the model untouched."""
    before = complete_state(model)
    found = compact(model, example, **options)
    assert same(complete_state(model), before)
    plain = copy.deepcopy(model).eval()
    random = torch.Generator().manual_seed(1)
    for count in (1, 5):
        x = torch.randn(count, *example.shape[1:], generator=random, dtype=example.dtype)
        with torch.no_grad():
            torch.testing.assert_close(found.model(x), plain(x), rtol=1e-4, atol=1e-5)
    assert found.parameters == tuple(sum(p.numel() for p in net.parameters()) for net in (model, found.model))
    return found


def kill(layer: nn.Module, *filters: int, columns: tuple[int, ...] = ()) -> None:
    with torch.no_grad():
        layer.weight[list(filters)] = 0  # type: ignore[operator, index]
        layer.weight[:, list(columns)] = 0  # type: ignore[operator, index]


def shape(found: Compacted, name: str) -> tuple[int, ...]:
    return tuple(found.model.get_submodule(name).weight.shape)  # type: ignore[union-attr, arg-type]


def chain(padding: int = 0, *, bias: bool = True, between: nn.Module | None = None) -> nn.Sequential:
    first, second = nn.Conv2d(3, 6, 3, bias=bias), nn.Conv2d(6, 5, 3, padding=padding)
    return nn.Sequential(first, between or nn.Sigmoid(), second, nn.ReLU(), nn.Conv2d(5, 2, 1))


# --- chains ----------------------------------------------------------------------------------------------------------


def test_a_filter_of_zeros_moves_into_the_next_bias() -> None:
    model = chain()
    kill(model[0], 1, 4)
    found = checked(model)
    assert (shape(found, "0"), shape(found, "2")) == ((4, 3, 3, 3), (5, 4, 3, 3))
    assert "0           3   6 -> 4  168 -> 112" in str(found)
    assert found.notes == ()


def test_beside_zero_padding_one_constant_channel_stands_for_all() -> None:
    model = chain(padding=1)
    kill(model[0], 1, 2, 4)
    found = checked(model)
    assert (shape(found, "0"), shape(found, "2")) == ((4, 3, 3, 3), (5, 4, 3, 3))  # a constant does not fold at borders
    assert found.notes[0].startswith("1 constant channels stay: they are not 0")


def test_beside_zero_padding_zeros_go() -> None:
    model = chain(padding=1, bias=False, between=nn.ReLU())
    kill(model[0], 1, 2, 4)
    found = checked(model)
    assert shape(found, "2") == (5, 3, 3, 3)
    assert found.notes == ()


@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular"])
def test_other_padding_keeps_a_constant(mode: str) -> None:
    model = chain()
    model[2] = nn.Conv2d(6, 5, 3, padding=1, padding_mode=mode)
    kill(model[0], 1, 2, 4)
    assert shape(checked(model), "2") == (5, 3, 3, 3)


def test_a_channel_that_nobody_reads_goes_and_what_made_it() -> None:
    model = chain(padding=1)
    kill(model[4], columns=(0, 3))
    with torch.no_grad():
        model[2].weight[1:, 2] = 0  # only filter 0 reads channel 2, and filter 0 goes
        model[2].weight[0, 2] = 1
    found = checked(model)
    assert (shape(found, "0"), shape(found, "2"), shape(found, "4")) == ((5, 3, 3, 3), (3, 5, 3, 3), (2, 3, 1, 1))


@pytest.mark.parametrize("between", [nn.ReLU6(), nn.GELU(), nn.SiLU(), nn.Hardswish(), nn.Tanh(), nn.Dropout(0.5)])
def test_constants_go_through_activations(between: nn.Module) -> None:
    model = chain(between=between)
    kill(model[0], 0)
    assert shape(checked(model), "2") == (5, 5, 3, 3)


def test_constants_go_through_batch_norm_and_a_factor_of_zero_makes_one() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3))
    trained(model)
    with torch.no_grad():
        model[1].weight[5] = 0
        model[1].bias.copy_(torch.arange(6) - 2.5)
    kill(model[0], 1)
    found = checked(model)
    assert shape(found, "3") == (4, 4, 3, 3)
    assert shape(found, "1") == (4,)


@pytest.mark.parametrize(
    ("pool", "kept"),
    [
        (nn.MaxPool2d(3, 2, 1), 4),
        (nn.AvgPool2d(2), 4),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False), 4),
        (nn.AvgPool2d(3, 2, 1), 6),  # its borders are other values
        (nn.AvgPool2d(2, divisor_override=3), 6),
        (nn.AdaptiveAvgPool2d(2), 4),
        (nn.Upsample(scale_factor=2), 4),
    ],
)
def test_constants_and_pools(pool: nn.Module, kept: int) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), pool, nn.Conv2d(6, 4, 2))
    kill(model[0], 2, 3)
    assert shape(checked(model), "2")[1] == kept


def test_flatten_into_a_linear_layer() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4))
    kill(model[0], 2, 3)
    kill(model[4], columns=(20, 21, 22, 23))  # channel 5, at each position
    found = checked(model)
    assert (shape(found, "0"), shape(found, "4")) == ((3, 3, 3, 3), (4, 12))


class Viewed(nn.Module):
    """The number of channels is written into the code."""

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.head, self.view = nn.Conv2d(3, 6, 3), nn.Linear(6, 2), view

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.view(F.adaptive_avg_pool2d(self.conv(x), 1)))
        return out


@pytest.mark.parametrize(
    ("view", "kept"),
    [
        (lambda x: x.view(-1, 6), 4),
        (lambda x: x.view(x.size(0), -1), 4),
        (lambda x: x.reshape(x.shape[0], 6), 4),
        (lambda x: torch.flatten(x, start_dim=1), 4),
        (lambda x: x.mean((2, 3)), 4),
        (lambda x: x.view(x.size(0), x.size(1)), 6),  # it asks for the channels
        (lambda x: x.squeeze(), 6),  # not known
    ],
)
def test_ways_to_flatten(view: Callable[[Tensor], Tensor], kept: int) -> None:
    model = Viewed(view)
    kill(model.conv, 0, 3)
    found = compact(model, IMAGES)
    assert shape(found, "conv")[0] == kept
    assert bool(found.notes) == (kept == 6)
    with torch.no_grad():
        torch.testing.assert_close(found.model(IMAGES), model(IMAGES))


def test_linear_chains_with_and_without_more_axes() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    kill(model[0], 1, 2)
    kill(model[5], columns=(3,))
    for example in (torch.randn(7, 4), torch.randn(7, 5, 4)):
        found = checked(model, example)
        assert (shape(found, "0"), shape(found, "3"), shape(found, "5")) == ((6, 4), (5, 6), (3, 5))


def test_double_precision_and_a_model_in_training_mode() -> None:
    model = chain(padding=1).double().train()
    kill(model[0], 1, 4)
    assert checked(model, IMAGES.double()).difference < 1e-12


def test_what_was_masked_by_torch_prunes_too() -> None:
    from torch.nn.utils import prune

    model = chain()
    prune.ln_structured(model[0], "weight", 2, 2, 0)
    with torch.no_grad():
        expected = model(IMAGES)
    found = compact(model, IMAGES)
    assert shape(found, "0") == (4, 3, 3, 3)
    torch.testing.assert_close(found.model(IMAGES), expected)


# --- branches --------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int = 6, *, bias: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=bias) for _ in range(2))
        self.head = nn.Conv2d(width, 4, 1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        y = self.two(self.act(self.one(x)))
        y += x
        out: Tensor = self.head(self.act(y)).mean((2, 3))
        return out


def test_at_an_addition_a_channel_goes_on_both_sides_or_not_at_all() -> None:
    model = Block()
    kill(model.stem, 1, 2)
    kill(model.two, 2, 3)
    kill(model.one, columns=(1,))
    found = checked(model)
    assert shape(found, "two") == (6 - 1, 6, 3, 3)  # 2 is a constant on both sides
    assert shape(found, "stem")[0] == shape(found, "head")[1] == 5
    assert shape(found, "one") == (6, 5, 3, 3)


def test_a_channel_that_nobody_reads_goes_from_both_sides() -> None:
    model = Block()
    kill(model.head, columns=(0,))
    assert shape(checked(model), "two")[0] == 6  # the branch reads channel 0
    kill(model.one, columns=(0,))
    found = checked(model)
    assert (shape(found, "two"), shape(found, "one"), shape(found, "stem")) == (
        (5, 6, 3, 3),
        (6, 5, 3, 3),
        (5, 3, 3, 3),
    )


def test_a_branch_of_zeros_goes() -> None:
    model = Block(bias=False)
    kill(model.two, *range(6))
    found = checked(model)
    assert len(found.blocks) == 1
    assert {name for name, _ in found.model.named_modules()} == {"", "stem", "head", "act"}
    assert next(x for x in found.layers if x.name == "one").after == (0, 0, 0)
    assert "branches that passed nothing on, and went: two" in str(found)


def test_a_branch_of_constants_becomes_them() -> None:
    model = Block()
    kill(model.one, *range(6))  # what one makes is a constant, but two has borders
    assert checked(model).blocks == ()
    kill(model.two, *range(6))
    kill(model.head, columns=(5,))
    found = checked(model)
    assert len(found.blocks) == 1
    assert not any(name in ("one", "two") for name, _ in found.model.named_modules())
    assert [tuple(x.shape) for x in found.model.buffers()] == [(1, 5, 1, 1)]
    assert shape(found, "stem")[0] == 5


def test_zero_padded_shortcuts() -> None:
    model = trained(create_model("resnet20"))
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and name != "conv1":
            kill(module, *range(0, len(module.weight), 2))
        elif isinstance(module, nn.BatchNorm2d):
            with torch.no_grad():
                module.bias[::2] = -0.1  # behind a ReLU: zero
                module.running_mean[::2] = 0
    kill(model.get_submodule("linear"), columns=(0, 2, 60))
    found = checked(model, torch.randn(2, 3, 32, 32))
    assert shape(found, "layer1.0.conv1") == (8, 16, 3, 3)
    assert found.model.get_submodule("linear").in_features < 64  # type: ignore[operator]
    assert found.parameters[1] < 0.6 * found.parameters[0]


class Widened(nn.Module):
    """A shortcut of channels of zeros around those that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.branch(x) + F.pad(self.stem(x), (0, 0, 0, 0, 1, 3)))
        return out


@pytest.mark.parametrize(("unread", "left"), [((0, 7), 6), ((1, 2), 6), ((1, 2, 3, 4), 5), ((0, 5, 6, 7), 4)])
def test_channels_of_zeros_around_others(unread: tuple[int, ...], left: int) -> None:
    model = Widened()
    kill(model.head, columns=unread)
    assert shape(checked(model), "branch")[0] == left


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 5, 1), nn.Conv2d(3, 2, 1)
        self.norm, self.head = nn.BatchNorm2d(11), nn.Conv2d(11, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(torch.cat([self.a(x), self.b(x), self.c(x)], 1)).relu())
        return out


def test_concatenation() -> None:
    model = trained(Joined())
    kill(model.a, 1)
    kill(model.b, 0, 4)
    kill(model.head, columns=(3,))
    found = checked(model)
    assert [shape(found, x)[0] for x in "abc"] == [2, 3, 2]
    assert (shape(found, "norm"), shape(found, "head")) == ((7,), (3, 7, 3, 3))
    kill(model.c, 0, 1)  # a part that goes as a whole
    found = checked(model)
    assert shape(found, "head") == (3, 5, 3, 3)
    assert "c" not in dict(found.model.named_modules())


class Gated(nn.Module):
    """Squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.down, self.up, self.head = (
            nn.Conv2d(3, 6, 3),
            nn.Conv2d(6, 2, 1),
            nn.Conv2d(2, 6, 1),
            nn.Conv2d(6, 3, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu()
        gate = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))
        out: Tensor = self.head(gate * x)
        return out


def test_a_gate() -> None:
    model = Gated()
    kill(model.conv, 0)
    with torch.no_grad():
        model.conv.bias[0] = -1  # behind the ReLU: zero, whatever the gate
    kill(model.up, 1, 2)  # a gate of one value: the channel stays
    found = checked(model)
    assert (shape(found, "conv")[0], shape(found, "up")[0], shape(found, "down")[1]) == (5, 5, 5)


# --- depthwise, groups, what is shared -------------------------------------------------------------------------------


def test_depthwise_ties_inputs_to_outputs() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Conv2d(6, 4, 1))
    kill(model[2], 1, 4)  # constants, behind which nobody asks for the input
    kill(model[3], columns=(5,))
    found = checked(model)
    assert (shape(found, "0"), shape(found, "2"), shape(found, "3")) == ((3, 3, 1, 1), (3, 1, 3, 3), (4, 3, 1, 1))
    assert found.model.get_submodule("2").groups == 3


def test_groups_are_left_and_said_so() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 3, groups=2), nn.Conv2d(4, 4, 1))
    kill(model[0], 1)
    kill(model[1], 1)
    found = checked(model)
    assert found.parameters[0] == found.parameters[1]
    assert found.notes == ("1 is left: its channels are in groups",)


@pytest.mark.parametrize("name", ["networks:Shared", "networks:Twice"])
def test_what_is_called_twice_or_shared_is_left(name: str) -> None:
    model = create_model(name)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            kill(module, 0, columns=(1,))
    found = checked(model)
    words = " ".join(found.notes)
    assert "called 2 times" in words
    assert ("its parameters are shared" in words) == (name == "networks:Shared")


def test_every_operation_of_the_residual_network() -> None:
    model = create_model("networks:Residual")
    kill(model.get_submodule("conv2"), 0, 3)
    kill(model.get_submodule("hidden"), 2)
    found = checked(model, torch.randn(3, 3, 9, 9))
    assert "conv1 is left: its channels are in groups" in found.notes


class Written(nn.Module):
    """What one operation writes into is read by another, before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head, self.act = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        y = self.act(x)
        out: Tensor = self.head(x + y)  # x was written into: this is 2 relu(x)
        return out


def test_writing_in_place_is_respected() -> None:
    model = Written()
    kill(model.conv, 0, 1)
    with torch.no_grad():
        model.conv.bias.copy_(torch.tensor([-1.0, 1.0, 0.0, 0.0]))
    found = checked(model)
    assert shape(found, "conv")[0] == 4


def test_a_dead_network_keeps_one_channel_of_each_layer() -> None:
    model = chain(padding=1)
    for layer in (0, 2, 4):
        kill(model[layer], *range(len(model[layer].weight)))
    found = checked(model)
    assert [shape(found, str(layer))[0] for layer in (0, 2, 4)] == [1, 1, 2]


# --- folding, tracing, the check -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "mobilenet_v2", "vgg16_bn_quarter"])
def test_networks_with_norms_folded(name: str) -> None:
    model = trained(create_model(name))
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels > 3:
            kill(module, *range(0, len(module.weight), 3))
    found = checked(model, torch.randn(2, 3, 32, 32), fold_norms=True)
    assert not [x for x in found.model.modules() if isinstance(x, (nn.BatchNorm2d, nn.Identity))]
    assert found.parameters[1] < found.parameters[0]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x if x.sum() > 0 else -x


def test_a_network_that_cannot_be_traced_is_left_and_said_so() -> None:
    model = Branching()
    found = checked(model)
    assert len(found.notes) == 1
    assert found.notes[0].startswith("left as it is, since it cannot be traced: symbolically traced variables")
    assert found.parameters[0] == found.parameters[1]


def test_an_answer_that_is_not_the_same_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from repairability.deploy.compacting import cutting

    model = chain()
    kill(model[0], 1)
    monkeypatch.setattr(cutting, "sums", lambda weight: torch.zeros(weight.shape[:2], dtype=torch.float64))
    with pytest.raises(InputError, match="the compacted network is not the same: an output differs by"):
        compact(model, IMAGES)


def test_an_example_that_does_not_fit_is_named() -> None:
    with pytest.raises(InputError, match="does not take a batch of shape"):
        compact(chain(), torch.randn(2, 5, 12, 12))


def test_outputs_of_several_tensors() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3), nn.Conv2d(4, 3, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            x = self.a(x)
            return {"b": self.b(x), "c": self.c(x)}

    model = Two()
    kill(model.a, 0)
    found = compact(model, IMAGES)
    assert shape(found, "c") == (3, 3, 3, 3)
    with torch.no_grad():
        torch.testing.assert_close(found.model(IMAGES), model(IMAGES))


def test_it_goes_to_plain_objects() -> None:
    model = chain()
    kill(model[0], 1, 4)
    found = checked(model).to_dict()
    assert found["layers"][0] == {"name": "0", "inputs": [3, 3], "outputs": [6, 4], "parameters": [168, 112]}


class Drawn(nn.Module):
    """A network drawn at random: each step takes one or two of the tensors so far, of 8 x 8 positions all."""

    def __init__(self, steps: list[tuple[str, int, int]], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        widths, self.plan = [3], []
        for i, (kind, one, two) in enumerate(steps):
            a, b = one % len(widths), two % len(widths)
            made: nn.Module | None = None
            width = widths[a]
            if kind in ("conv", "padded", "pointwise", "plain"):
                width = 1 + two % 6
                size, padding = (1, 0) if kind == "pointwise" else (3, 1)
                mode = "replicate" if kind == "conv" else "zeros"
                made = nn.Conv2d(widths[a], width, size, padding=padding, bias=kind != "plain", padding_mode=mode)
            elif kind == "depthwise":
                made = nn.Conv2d(width, width, 3, padding=1, groups=width)
            elif kind == "norm":
                made = trained(nn.BatchNorm2d(width))
                nn.init.normal_(made.bias)
            elif kind == "act":
                made = [nn.ReLU(inplace=bool(two % 2)), nn.Sigmoid(), nn.Hardswish()][two % 3]
            elif kind == "pool":
                made = [nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)][two % 2]
            elif kind == "cat":
                width = widths[a] + widths[b]
            elif widths[a] != widths[b]:
                continue  # nothing to add or multiply
            if made is not None:
                self.add_module(f"step{i}", made)
            self.plan.append((kind, a, b, f"step{i}" if made is not None else ""))
            widths.append(width)
        self.head = nn.Conv2d(widths[-1], 2, 1)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.BatchNorm2d)):
                dead = (torch.rand(len(module.weight)) < 0.4).nonzero().flatten().tolist()
                with torch.no_grad():
                    module.weight[dead] = 0
                    if module.weight.dim() > 1:
                        module.weight[:, torch.rand(module.weight.shape[1]) < 0.3] = 0

    def forward(self, x: Tensor) -> Tensor:
        tensors = [x]
        for kind, a, b, name in self.plan:
            if name:
                # an activation that writes into its input gets one of its own, so that eager order does not matter
                given = tensors[a] * 1 if kind == "act" else tensors[a]
                tensors.append(self.get_submodule(name)(given))
            elif kind == "cat":
                tensors.append(torch.cat([tensors[a], tensors[b]], 1))
            else:
                tensors.append(tensors[a] + tensors[b] if kind == "add" else tensors[a] * tensors[b])
        out: Tensor = self.head(tensors[-1])
        return out


KINDS = ["conv", "padded", "pointwise", "plain", "depthwise", "norm", "act", "pool", "cat", "add", "mul"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=14),
    st.integers(0, 1000),
)
def test_any_network_keeps_its_outputs(steps: list[tuple[str, int, int]], seed: int) -> None:
    model = Drawn(steps, seed).double()
    example = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = compact(model, example)
    other = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(found.model(other), model.eval()(other), rtol=1e-6, atol=1e-9)
    assert found.parameters[1] <= found.parameters[0] + found.channels[0]  # biases may be new


ZOO = ["mobilenet_v3_small", "efficientnet_b0", "densenet121", "googlenet", "squeezenet1_0", "shufflenet_v2_x0_5"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ZOO, "regnet_y_400mf", "convnext_tiny", "vit_b_16"])
def test_the_zoo(name: str) -> None:
    model = trained(create_model(name, num_classes=7))
    random = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.weight.shape[1] > 3:
            with torch.no_grad():
                module.weight.copy_(0.1 * torch.randn(module.weight.shape, generator=random))
            dead = (torch.rand(len(module.weight), generator=random) < 0.4).nonzero().flatten().tolist()
            kill(module, *dead)
    side = 224 if name == "vit_b_16" else 96
    found = compact(model, torch.randn(2, 3, side, side, generator=random))
    assert found.difference < 1e-4
    assert found.parameters[1] < 0.97 * found.parameters[0]
