from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from networks import Shared, linear_net, small_net
from repairability import InputError, allocate, apply_masks_, create_model, make_masks, prunable_layers
from repairability.network.layers import layers_named


def test_resnet18_has_19_repairable_layers(resnet18: nn.Module) -> None:
    layers = prunable_layers(resnet18)
    assert len(layers) == 19
    assert (layers.total, layers.n_all) == (11_157_504, 11_166_912)
    assert layers.names[0] == "layer1.0.conv1"
    assert [x.name for x in layers if x.projection] == [f"layer{i}.0.downsample.0" for i in (2, 3, 4)]
    assert layers["layer2.0.conv1"].shape == (128, 64, 3, 3)


def test_the_stem_is_skipped_unless_asked() -> None:
    net = small_net()
    assert prunable_layers(net).names == ("2", "4")
    assert prunable_layers(net, skip=()).names == ("0", "2", "4")
    assert prunable_layers(net, skip=("@first", "4")).names == ("2",)


def test_types_choose_what_counts() -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Conv1d(3, 3, 3), nn.Conv3d(1, 2, 3), nn.Linear(5, 6))
    assert prunable_layers(net, types=("conv1d",)).names == ("1",)
    both = prunable_layers(net, types=("conv3d", "linear"))
    assert [(x.name, x.kind) for x in both] == [("2", "conv3d"), ("3", "linear")]
    assert both.n_all == 2 * 27 + 30


def test_globs_choose_by_dotted_name(resnet18: nn.Module) -> None:
    chosen = prunable_layers(resnet18, only=("layer1.*", "layer2.0.conv?"), skip=("layer1.1.*",))
    assert chosen.names == ("layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "layer2.0.conv2")
    assert chosen.n_all == 11_166_912


def test_projection_patterns_can_be_set(resnet18: nn.Module) -> None:
    layers = prunable_layers(resnet18, projections=("*conv1",))
    assert {x.name for x in layers if x.projection} == {x.name for x in layers if x.name.endswith("conv1")}


def test_shared_modules_and_weights_count_once() -> None:
    layers = prunable_layers(Shared())
    assert layers.names == ("a", "b")
    assert layers.n_all == 4 * 3 * 9 + 2 * 4 * 4 * 9


def test_prints_as_a_table() -> None:
    text = str(prunable_layers(small_net()))
    assert "16x8x3x3" in text
    assert "2 layers, 1,408 prunable of 1,624 weights" in text


def test_magnitudes_are_exact_in_every_dtype() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        net = small_net().to(dtype)
        layer = prunable_layers(net)[0]
        assert torch.equal(torch.from_numpy(layer.magnitudes()).to(dtype), layer.weight.abs().flatten())


def test_meta_models_can_be_listed_but_not_ranked() -> None:
    with torch.device("meta"):
        net = small_net()
    layers = prunable_layers(net)
    assert layers.total == 1408
    with pytest.raises(InputError, match="meta device"):
        layers[0].magnitudes()


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
        prunable_layers(linear_net())
    with pytest.raises(InputError, match="nothing is left to prune"):
        prunable_layers(nn.Sequential(nn.Conv2d(1, 1, 1)))
    with pytest.raises(InputError, match=r"unknown layer type 'conv2'; did you mean conv2d"):
        prunable_layers(small_net(), types=("conv2",))
    with pytest.raises(InputError, match=r"unknown layer or pattern 'layer9.\*'"):
        prunable_layers(small_net(), only=("layer9.*",))
    with pytest.raises(InputError, match=r"types takes a sequence of names, not the string 'conv'; write \('conv',\)"):
        prunable_layers(small_net(), types="conv")
    with pytest.raises(InputError, match="not int"):
        prunable_layers(3)


def test_masked_and_parametrized_weights_are_refused_by_name() -> None:
    masked = small_net()
    prune.l1_unstructured(masked[2], "weight", 0.5)
    normed = small_net()
    parametrizations.weight_norm(normed[4])
    for net, name in ((masked, "2"), (normed, "4"), (nn.Sequential(nn.LazyConv2d(4, 3)), "0")):
        with pytest.raises(InputError, match=f"the weight of layer '{name}' is not an ordinary parameter"):
            prunable_layers(net, skip=())


def test_a_name_a_layer_and_a_slice(small_net: nn.Module) -> None:
    layers = prunable_layers(small_net, skip=())
    first = layers[0]
    assert first.name in layers
    assert first in layers
    assert "nothing" not in layers
    assert prunable_layers(create_model("networks:small_net", seed=1), skip=())[0] not in layers
    assert layers[1:].names == layers.names[1:]
    assert layers[::-1].names == layers.names  # in definition order, as every subset


def test_the_same_layers_in_another_copy(small_net: nn.Module) -> None:
    layers = prunable_layers(small_net)
    other = copy.deepcopy(small_net)
    theirs = layers.on(other)
    assert theirs.names == layers.names
    assert theirs.n_all == layers.n_all
    assert all(x.weight is other.get_submodule(x.name).weight for x in theirs)
    with pytest.raises(InputError, match="unknown layer"):
        layers.on(nn.Sequential(nn.Identity()))


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
