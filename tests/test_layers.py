from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from networks import Twice, small_net
from repairability import InputError, create_model, prunable_layers
from repairability.network.discover import layers_named
from repairability.network.layers import Layer, part_of, tensor_of


def test_prints_as_a_table() -> None:
    text = str(prunable_layers(small_net()))
    assert "16x8x3x3" in text
    assert "2 layers, 1,408 prunable of 1,624 weights; 76.77 % of all 1,834 parameters" in text


@pytest.mark.usefixtures("quiet")
def test_the_table_says_what_was_left_out() -> None:
    layers = prunable_layers(Twice(), batch=torch.randn(2, 3, 4, 4))
    assert layers.left_out == {"unused": "the model never reaches it on these samples"}
    assert "left out: unused: the model never reaches it on these samples" in str(layers)
    assert layers.coverage == (144 + 16) / sum(p.numel() for p in Twice().parameters())
    assert layers[:1].coverage == 144 / sum(p.numel() for p in Twice().parameters())


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
    with pytest.raises(InputError, match=r"layer '2' has shape \(16, 8, 3, 3\) here and \(9, 8, 3, 3\) in the other"):
        layers.on(nn.Sequential(nn.Identity(), nn.Identity(), nn.Conv2d(8, 9, 3)))
    assert layers.on(nn.DataParallel(other)).names == layers.names


@pytest.mark.parametrize(
    ("module", "outputs"),
    [
        (nn.Conv2d(4, 6, 3, groups=2), 6),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), 6),
        (nn.ConvTranspose1d(4, 6, 3), 6),
        (nn.Linear(4, 6), 6),
    ],
)
def test_filters_are_read_and_written(module: nn.Module, outputs: int) -> None:
    (layer,) = layers_named(nn.Sequential(module), ["0"])
    before = layer.weight.detach().clone()
    filters = layer.filters()
    assert layer.outputs == outputs == filters.shape[0] * filters.shape[1]
    assert torch.equal(layer.unfiltered(filters), before)
    layer.write_(filters * torch.arange(outputs).view(layer.groups, -1, 1))
    axis = 1 if layer.turned else 0
    empty = module.get_parameter("weight").movedim(axis, 0)[0]
    assert bool((empty[: len(empty) // layer.groups] == 0).all())
    assert torch.equal(layer.filters(before)[0, -1] * (outputs // layer.groups - 1), layer.filters()[0, -1])


def test_a_part_is_written_through() -> None:
    attention = nn.MultiheadAttention(8, 2)
    layers = layers_named(attention, [f"in_proj_weight.{x}" for x in "qkv"])
    assert [x.place for x in layers] == ["in_proj_weight"] * 3
    for i, layer in enumerate(layers):
        layer.write_(torch.full((1, 8, 8), float(i + 1)))
    assert attention.in_proj_weight[:, 0].tolist() == [1.0] * 8 + [2.0] * 8 + [3.0] * 8
    matrices = nn.Parameter(torch.zeros(3, 4, 5))
    Layer("experts.1", "matrix", part_of(matrices, 1), parameter="experts", part=1).write_(torch.ones(1, 5, 4))
    assert matrices.sum((1, 2)).tolist() == [0.0, 20.0, 0.0]
    assert part_of(matrices, None) is matrices


def test_the_tensor_of_a_name() -> None:
    net = small_net()
    assert tensor_of(net, "2.weight") is net[2].weight
    prune.l1_unstructured(net[2], "weight", 0.5)
    assert torch.equal(tensor_of(net, "2.weight"), net[2].weight)  # what the mask leaves of it
    parametrizations.weight_norm(net[4])
    for name in ("4.weight", "2.nothing"):
        with pytest.raises(InputError, match=f"the weight of layer '{name[0]}' is not an ordinary parameter"):
            tensor_of(net, name)
    with pytest.raises(InputError, match="unknown layer '9'"):
        tensor_of(net, "9.weight")
