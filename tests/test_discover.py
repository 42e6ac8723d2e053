"""Which weights may be pruned: by their types and names, and by what a run shows of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

import repairability as rp
from networks import Shared, Twice, linear_net, small_net
from repairability import InputError, PruneConfig, allocate, apply_masks_, make_masks, prunable_layers
from repairability.network.candidates import refittable_layers
from repairability.network.discover import FIRST_CONV, LAST_LINEAR, SKIPPED, layers_named
from repairability.network.layers import part_of
from test_diagnostics import Standardised
from test_readers import Conv1D
from test_trace import OnDemand

pytestmark = pytest.mark.filterwarnings("ignore:only .* of the parameters:UserWarning")


def test_resnet18_has_19_repairable_layers(resnet18: nn.Module) -> None:
    layers = prunable_layers(resnet18)
    assert len(layers) == 19
    assert (layers.total, layers.n_all) == (11_157_504, 11_166_912)
    assert layers.names[0] == "layer1.0.conv1"
    assert [x.name for x in layers if x.projection] == [f"layer{i}.0.downsample.0" for i in (2, 3, 4)]
    assert layers["layer2.0.conv1"].shape == (128, 64, 3, 3)


def test_the_stem_and_the_classifier_are_skipped_unless_asked() -> None:
    net, every = small_net(), ("conv", "linear")
    assert prunable_layers(net).names == ("2", "4")
    assert prunable_layers(net, skip=()).names == ("0", "2", "4")
    assert prunable_layers(net, skip=("@first", "4")).names == ("2",)
    assert prunable_layers(net, types=every).names == ("2", "4")
    assert prunable_layers(net, types=every, skip=("@first",)).names == ("2", "4", "7")
    assert prunable_layers(net, types=every, skip=("@last",)).names == ("0", "2", "4")
    assert prunable_layers(net, types=("linear",), skip=()).names == ("7",)
    assert SKIPPED == (FIRST_CONV, LAST_LINEAR) == ("@first", "@last")


def test_the_stem_is_the_first_convolution_whatever_is_asked_for() -> None:
    """A decoder's transposed convolution is none, and a Linear before it is none."""
    net = nn.Sequential(nn.ConvTranspose2d(3, 3, 1), nn.Linear(4, 4), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
    assert prunable_layers(net, skip=("@first",), types=("conv_transpose2d", "conv")).names == ("0", "3")


def test_linear_layers_count_where_they_hold_most_of_the_weights() -> None:
    """The classifier does not count for it: it stays dense."""
    few = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 8), nn.Linear(8, 1000))
    many = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 200), nn.Linear(200, 10))
    assert prunable_layers(few).names == ("1",)
    assert prunable_layers(many).names == ("1", "2")
    assert prunable_layers(many, types="auto", skip=()).names == ("0", "1", "2", "3")
    assert prunable_layers(linear_net()).names == ("0",)
    assert prunable_layers(nn.TransformerEncoderLayer(8, 2, 16), skip=()).names == (
        *(f"self_attn.in_proj_weight.{x}" for x in "qkv"),
        *("self_attn.out_proj", "linear1", "linear2"),
    )
    separate = prunable_layers(nn.MultiheadAttention(8, 2, kdim=4, vdim=6), skip=())
    assert [(x.name, x.shape) for x in separate][:3] == [
        ("q_proj_weight", (8, 8)),
        ("k_proj_weight", (8, 4)),
        ("v_proj_weight", (8, 6)),
    ]
    assert prunable_layers(nn.Sequential(Conv1D(), Conv1D())).names == ("0",)


def test_types_choose_what_counts() -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Conv1d(3, 3, 3), nn.Conv3d(1, 2, 3), nn.Linear(5, 6))
    assert prunable_layers(net, types=("conv1d",)).names == ("1",)
    both = prunable_layers(net, types=("conv3d", "linear"), skip=("@first",))
    assert [(x.name, x.kind) for x in both] == [("2", "conv3d"), ("3", "linear")]
    assert both.n_all == 2 * 27 + 30


def test_globs_choose_by_dotted_name(resnet18: nn.Module) -> None:
    chosen = prunable_layers(resnet18, only=("layer1.*", "layer2.0.conv?"), skip=("layer1.1.*",))
    assert chosen.names == ("layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "layer2.0.conv2")
    assert chosen.n_all == 11_166_912


def test_projection_patterns_can_be_set(resnet18: nn.Module) -> None:
    layers = prunable_layers(resnet18, projections=("*conv1",))
    assert {x.name for x in layers if x.projection} == {x.name for x in layers if x.name.endswith("conv1")}


def test_one_module_under_two_names_counts_once() -> None:
    layers = prunable_layers(Shared(), only=("a*",))
    assert layers.names == ("a",)


@pytest.mark.parametrize("batch", [None, torch.randn(2, 3, 12, 12)])
def test_a_weight_of_two_modules_is_left_out_unless_it_is_named(batch: Tensor | None) -> None:
    net = Shared()
    for only in (("*",), ("a", "b*"), ("a", "b_*")):
        with pytest.warns(UserWarning, match="is not pruned") as notices:
            layers = prunable_layers(net, only=only, batch=batch)
        said = [str(x.message) for x in notices]
        assert "layer 'b_tied' of Shared is not pruned: its weight is also held by b" in said
        assert layers.names == ("a",)
        assert layers.left_out["b_tied"] == "its weight is also held by b"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layers = prunable_layers(net, only=("a", "b"), batch=batch)
    assert layers.names == ("a", "b")
    assert layers.total == 2 * 4 * 4 * 9


def test_shared_modules_and_weights_count_once() -> None:
    """Also where they are named, by one name or by both."""
    for only in (("a", "b"), ("a", "b", "b_tied")):
        layers = prunable_layers(Shared(), only=only)
        assert layers.total == 2 * 4 * 4 * 9
        assert layers.n_all == 4 * 3 * 9 + 2 * 4 * 4 * 9


class Language(nn.Module):
    """An embedding and a head of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up, self.down = nn.Embedding(50, 16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.down(self.up(self.embedding(ids)).relu()))
        return out


@pytest.mark.parametrize("batch", [None, torch.arange(20).view(4, 5)])
def test_an_embedding_and_a_head_of_one_weight(batch: Tensor | None) -> None:
    with pytest.warns(UserWarning, match="layer 'head' of Language is not pruned: its weight is also held by embedd"):
        assert prunable_layers(Language(), skip=(), batch=batch).names == ("up", "down")
    assert prunable_layers(Language(), batch=batch).names == ("up", "down")  # "@last" is it
    assert prunable_layers(Language(), skip=(), only=("up", "head"), batch=batch).names == ("up", "head")


def test_layers_named_finds_any_type_and_names_near_matches() -> None:
    net = small_net()
    assert layers_named(net, ["7", "0"]).names == ("0", "7")
    with pytest.raises(InputError, match=r"unknown layer '77'; did you mean 7\?"):
        layers_named(net, ["77"])


def bad_weight(value: float) -> nn.Module:
    net = small_net()
    with torch.no_grad():
        net.get_parameter("2.weight")[0, 0, 0, 0] = value
    return net


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_cannot_be_ranked(value: float) -> None:
    with pytest.raises(InputError, match="'2' holds nan or inf"):
        prunable_layers(bad_weight(value))


def test_clear_errors() -> None:
    with pytest.raises(InputError, match="Sequential has no layer of type conv: nothing to prune"):
        prunable_layers(linear_net(), types=("conv",))
    with pytest.raises(InputError, match="Sequential has no layer of type convolutional or linear: nothing to prune"):
        prunable_layers(nn.Sequential(nn.ReLU(), nn.Embedding(3, 3)))
    with pytest.raises(InputError, match="nothing is left to prune"):
        prunable_layers(nn.Sequential(nn.Conv2d(1, 1, 1)))
    with pytest.raises(InputError, match=r"unknown layer type 'conv2'; did you mean conv2d"):
        prunable_layers(small_net(), types=("conv2",))
    with pytest.raises(InputError, match=r"unknown layer or pattern 'layer9.\*'"):
        prunable_layers(small_net(), only=("layer9.*",))
    with pytest.raises(
        InputError, match=r"types takes 'auto' or a sequence of names, not the string 'conv'; write \('conv',"
    ):
        prunable_layers(small_net(), types="conv")
    for name in ("skip", "only", "projections"):
        with pytest.raises(InputError, match=rf"{name} takes a sequence of names, not the string '2'; write \('2',\)"):
            prunable_layers(small_net(), **{name: "2"})
    with pytest.raises(InputError, match="not int"):
        prunable_layers(3)


def weight_normed() -> nn.Module:
    net = small_net()
    parametrizations.weight_norm(net[4])
    return net


def weight_normed_by_a_hook() -> nn.Module:
    net = small_net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and still in use
        nn.utils.weight_norm(net[4])
    return net


def lazy() -> nn.Module:
    return nn.Sequential(*list(small_net())[:4], nn.LazyConv2d(4, 3))


def quantized_by_a_subclass() -> nn.Module:
    """A weight that is a tensor of a class of its own, as torchao's are."""

    class Strange(Tensor):
        pass

    net = small_net()
    net[4].weight = nn.Parameter(net[4].weight.detach().as_subclass(Strange))
    return net


@pytest.mark.parametrize("make", [weight_normed, weight_normed_by_a_hook, lazy, quantized_by_a_subclass])
def test_unusual_weights_are_left_out_or_refused_by_name(make: Callable[[], nn.Module]) -> None:
    """Left out with a notice where nobody asked for them; refused where their type or their name was said."""
    with pytest.warns(UserWarning, match="layer '4' of Sequential is not pruned: .*not an ordinary parameter"):
        layers = prunable_layers(make())
    assert layers.names == ("2",)
    assert set(layers.left_out) == {"4"}
    for choice in ({"types": ("conv",)}, {"only": ("2", "4")}):
        with pytest.raises(InputError, match="the weight of layer '4' is not an ordinary parameter"):
            prunable_layers(make(), **choice)
    with pytest.raises(InputError, match="the weight of layer '4' is not an ordinary parameter"):
        layers_named(make(), ["4"])
    assert refittable_layers(make()).names[:2] == ("0", "2")
    assert "4" not in refittable_layers(make())
    assert prunable_layers(make(), skip=("@first", "4"), types=("conv",)).names == ("2",)


def test_where_nothing_is_left_the_reason_is_named() -> None:
    with pytest.raises(InputError, match=r"nothing is left to prune in Sequential.*0: .*not an ordinary parameter"):
        prunable_layers(nn.Sequential(nn.LazyConv2d(4, 3)), skip=())


def test_masks_of_torch_are_taken_over_as_zeros() -> None:
    net = small_net()
    prune.l1_unstructured(net[2], "weight", 0.5)
    for types in ("auto", ("conv",)):
        with pytest.warns(UserWarning, match="masks of torch.nn.utils.prune on 2 are taken over as zeros"):
            layers = prunable_layers(net, types=types)
        assert layers.names == ("2", "4")
        assert int((layers["2"].weight == 0).sum()) == 576
    zeros = layers["2"].weight == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        masks = make_masks(net, allocate(net, sparsity=0.75, rule="uniform"))
    assert not bool(masks["2"][zeros].any())


# --- what a run shows ------------------------------------------------------------------------------------------------


def test_layers_that_a_run_never_reaches_are_left_out() -> None:
    net = Twice()
    assert prunable_layers(net).names == ("body", "last", "unused")
    with pytest.warns(UserWarning, match="layer 'unused' of Twice is not pruned: the model never reaches it on these"):
        layers = prunable_layers(net, batch=torch.randn(4, 3, 5, 5))
    assert layers.names == ("body", "last")
    with pytest.raises(InputError, match=r"nothing is left to prune in Twice.*unused: the model never reaches it"):
        prunable_layers(net, only=("unused",), batch=torch.randn(4, 3, 5, 5))


def test_a_few_samples_are_asked_and_all_of_them_where_those_leave_a_layer_out() -> None:
    images = -torch.ones(20, 1, 2, 2)
    with pytest.warns(UserWarning, match="layer 'rare' of OnDemand is not pruned"):
        assert prunable_layers(OnDemand(), batch=images).names == ("body",)
    images[-1] = 1
    assert prunable_layers(OnDemand(), batch=images).names == ("body", "rare")


class Mixture(nn.Module):
    """Weights that no module of a known kind owns: matrices of experts, a plain parameter, and one that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 8, 16))
        self.down = nn.Parameter(torch.randn(3, 8, 16))
        self.gate, self.back = nn.Parameter(torch.randn(8, 3)), nn.Parameter(torch.randn(6, 8))
        self.position = nn.Parameter(torch.randn(5, 8))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.position
        rows = x.flatten(0, 1)
        hidden = torch.bmm(rows.expand(3, *rows.shape), self.up).relu()
        out = (torch.bmm(hidden, self.down.mT) * (rows @ self.gate).softmax(-1).T[..., None]).sum(0)
        given: Tensor = self.head(F.linear(out, self.back)).unflatten(0, x.shape[:2])
        return given


def test_weights_without_a_module_are_found_by_a_run() -> None:
    net = Mixture()
    layers = prunable_layers(net, batch=torch.randn(4, 5, 8))
    kinds = {x.name: (x.kind, x.shape) for x in layers}
    assert kinds == {
        **{f"up.{i}": ("matrix", (8, 16)) for i in range(3)},
        **{f"down.{i}": ("linear", (8, 16)) for i in range(3)},
        "gate": ("matrix", (8, 3)),
        "back": ("linear", (6, 8)),
    }
    assert layers.coverage == pytest.approx(1 - (40 + 28) / sum(p.numel() for p in net.parameters()))
    assert all(x.weight.data_ptr() == part_of(net.get_parameter(x.place), x.part).data_ptr() for x in layers)


def test_layers_named_knows_what_only_a_run_finds() -> None:
    net = Mixture()
    named = layers_named(net, ["gate", "up.2", "head", "back"])
    assert {x.name: x.shape for x in named} == {"head": (4, 6), "gate": (8, 3), "up.2": (8, 16), "back": (6, 8)}
    names = prunable_layers(net, batch=torch.randn(4, 5, 8)).names
    assert layers_named(net, reversed(names)).names == names  # in definition order, whatever the order of asking
    with pytest.raises(InputError, match="unknown layer 'up.9'"):
        layers_named(net, ["up.9"])
    with pytest.raises(InputError, match="unknown layer 'up'"):
        layers_named(net, ["up"])


@pytest.mark.parametrize("score", ["magnitude", "second_order"])
@pytest.mark.parametrize("repair", ["none", "cr", "affine", "reconstruct", "reconstruct-all"])
def test_weights_without_a_module_are_pruned_by_every_recipe(score: str, repair: str) -> None:
    net, config = Mixture(), PruneConfig(count=40)
    x = torch.randn(40, 5, 8, generator=torch.Generator().manual_seed(0))
    found = rp.prune(net, x, sparsity=0.5, rule="erk", score=score, repair=repair, config=config)
    for layer in prunable_layers(found.model, batch=x):
        assert int((layer.weight == 0).sum()) == found.allocation.pruned(layer.name)
        assert torch.equal(layer.weight != 0, found.masks[layer.name])


@pytest.mark.parametrize("repair", ["cr", "reconstruct"])
def test_an_allocation_is_taken_again(repair: str) -> None:
    net, config = Mixture(), PruneConfig(count=40)
    x = torch.randn(40, 5, 8, generator=torch.Generator().manual_seed(0))
    found = rp.prune(net, x, sparsity=0.5, rule="uniform", score="magnitude", repair=repair, config=config)
    again = rp.prune(net, x, rule=found.allocation, score="magnitude", repair=repair, config=config)
    for name, tensor in found.model.state_dict().items():
        torch.testing.assert_close(tensor, again.model.state_dict()[name], msg=name)


# --- notices and single layers ---------------------------------------------------------------------------------------


def test_a_small_coverage_is_mentioned() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 40), nn.Linear(40, 40))
    with pytest.warns(UserWarning, match=r'only 20.51 % of the parameters .*types=\("conv", "linear"\) would make it'):
        prunable_layers(net, types=("conv",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prunable_layers(net, types=("conv", "linear"), skip=())
        prunable_layers(small_net())


def test_a_hint_is_one_that_helps() -> None:
    """To name a layer that is no plain product would not make it one."""
    net = nn.Sequential(nn.Conv2d(3, 4, 1), Standardised(4, 4, 3), nn.Conv2d(4, 4, 1))
    with pytest.warns(UserWarning, match="is not pruned") as notices:
        prunable_layers(net, batch=torch.randn(4, 3, 6, 6))
    said = [str(x.message) for x in notices if "of the parameters" in str(x.message)]
    assert len(said) == 1
    assert "if `only` named it" not in said[0]


def test_layers_that_are_not_chosen_are_not_looked_at(small_net: nn.Module) -> None:
    """A weight-normed, lazy or nan layer matters only if it is to be pruned."""
    model = nn.Sequential(*small_net.children(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    model.append(nn.Linear(4, 4))
    with torch.no_grad():
        model[-1].weight.fill_(torch.nan)
    plan = allocate(model, sparsity=0.5)
    masks = make_masks(model, plan)
    apply_masks_(model, masks)
    assert all(int((model.get_submodule(name).weight == 0).sum()) == plan.pruned(name) for name in plan)
    with pytest.raises(InputError, match="nan or inf"):
        layers_named(model, [str(len(model) - 1)])
    with pytest.raises(InputError, match="not an ordinary parameter"):
        layers_named(model, [str(len(model) - 2)])


# --- parts with machinery of their own -------------------------------------------------------------------------------


def test_a_part_that_is_compiled_is_pruned_too() -> None:
    """`torch.compile` of repeated blocks, as PyTorch recommends it: run eagerly, it is what it was made of."""
    part = torch.compile(nn.Conv2d(4, 4, 3), backend="eager")
    net = nn.Sequential(nn.Conv2d(3, 4, 3), part, nn.Conv2d(4, 4, 3))  # type: ignore[arg-type]
    x = torch.randn(20, 3, 9, 9)
    net(x)
    found = rp.prune(
        net, x, sparsity=0.5, rule="uniform", score="magnitude", repair="reconstruct", config=PruneConfig(count=20)
    )
    assert [name.removesuffix("._orig_mod") for name in found.masks] == ["1", "2"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_part_that_is_scripted_is_no_layer() -> None:
    part = torch.jit.script(nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), part, nn.Conv2d(4, 4, 3))
    x = torch.randn(20, 3, 9, 9)
    assert prunable_layers(net).names == ("2",)
    found = rp.prune(
        net, x, sparsity=0.5, rule="uniform", score="magnitude", repair="reconstruct", config=PruneConfig(count=20)
    )
    assert list(found.masks) == ["2"]


class StemLast(nn.Module):
    """What runs first is defined last, and the head before the layer that leads to it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(4, 32, 3)
        self.head = nn.Linear(8, 3)
        self.middle = nn.Linear(32, 8)
        self.stem = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.middle(self.body(self.stem(x)).mean((2, 3))))
        return out


def test_first_and_last_are_by_the_order_of_a_run() -> None:
    model, batch = StemLast(), torch.randn(2, 3, 8, 8)
    assert prunable_layers(model, types=("conv", "linear"), batch=batch).names == ("body", "middle")
    assert prunable_layers(model, types=("conv", "linear")).names == ("head", "stem")  # nothing else is known
    pruned = rp.prune(model, torch.randn(128, 3, 8, 8), sparsity=0.5, rule="lamp", score="magnitude", repair="none")
    assert list(pruned.allocation) == ["body"]


class Unusual(nn.Module):
    """Named by how the stem and the head compute their weights."""

    def __init__(self, stem: str, head: str) -> None:
        super().__init__()
        conv, linear = nn.Conv2d(3, 8, 3), nn.Linear(16, 10, bias=False)
        self.stem = {"standardised": conv, "spectral": parametrizations.spectral_norm(nn.Conv2d(3, 8, 3))}[stem]
        self.middle, self.last = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 16, 3)
        self.hidden = nn.Linear(16, 16)
        self.head = {"cosine": linear, "weight_norm": parametrizations.weight_norm(nn.Linear(16, 10))}[head]

    def forward(self, x: Tensor) -> Tensor:
        w = self.stem.weight - self.stem.weight.mean((1, 2, 3), keepdim=True)
        x = self.last(self.middle(F.conv2d(x, w, self.stem.bias).relu()).relu()).relu().mean((2, 3))
        return F.linear(F.normalize(self.hidden(x).relu()), F.normalize(self.head.weight))


@pytest.mark.parametrize("stem", ["standardised", "spectral"])
@pytest.mark.parametrize("head", ["cosine", "weight_norm"])
def test_a_stem_or_head_of_computed_weights_is_still_first_or_last(stem: str, head: str) -> None:
    layers = prunable_layers(Unusual(stem, head), types=("conv", "linear"), batch=torch.randn(2, 3, 9, 9))
    assert layers.names == ("middle", "last", "hidden")
    assert not layers.left_out


def test_a_computed_weight_in_the_middle_does_not_matter() -> None:
    model = StemLast()
    model.add_module("more", parametrizations.weight_norm(nn.Conv2d(32, 8, 1)))
    model.middle = nn.Linear(8, 8)
    forward = lambda net, x: net.head(net.middle(net.more(net.body(net.stem(x))).mean((2, 3))))  # noqa: E731
    assert prunable_layers(model, batch=torch.randn(2, 3, 8, 8), forward=forward).names == ("body",)


def test_a_diagnosis_knows_which_layers_are_first_and_last() -> None:
    model = StemLast()
    diagnosis = rp.diagnose(model, torch.randn(64, 3, 8, 8), grid=[0.0, 0.5, 0.9])
    assert list(diagnosis.rr) == ["body"]
    plan = allocate(model, sparsity=0.5, rule="rr", curves=diagnosis)
    assert (list(plan), plan.sparsity) == (["body"], 0.5)
    assert list(allocate(model, sparsity=0.5, rule="rr", curves=diagnosis.rr)) == ["body"]
    assert list(allocate(model, sparsity=0.5)) == ["stem"]
