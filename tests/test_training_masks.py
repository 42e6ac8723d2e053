from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from networks import small_net
from repairability import InputError, Masks, PruneConfig, create_model, evaluate, load, masked_for_training, prune
from test_sacred import complete_state, same

IMAGES = torch.randn(24, 3, 12, 12, generator=torch.Generator().manual_seed(0))
pytestmark = pytest.mark.usefixtures("quiet")


def trained(model: nn.Module) -> None:
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-2)
    for _ in range(3):
        optimiser.zero_grad()
        model(IMAGES).square().mean().backward()
        optimiser.step()


def test_training_moves_what_stays_and_nothing_else(tmp_path: Path) -> None:
    result = prune(create_model("networks:small_net"), IMAGES, sparsity=0.8, recipe="fast")
    before = complete_state(result.model)
    masked = masked_for_training(result.model, result.masks)
    with torch.no_grad():
        torch.testing.assert_close(masked(IMAGES), result.model(IMAGES))
    assert {"2.weight_orig", "2.weight_mask"} <= masked.state_dict().keys()
    trained(masked)
    for layer, mask in result.masks.items():
        weight = masked.get_submodule(layer).weight
        assert isinstance(weight, torch.Tensor)
        assert not weight[~mask].any()
        assert not torch.equal(weight, result.model.get_submodule(layer).weight)
    assert same(complete_state(result.model), before)
    with torch.no_grad():
        expected = masked(IMAGES)
    labels = torch.zeros(len(IMAGES), dtype=torch.long)
    assert evaluate(masked, [(IMAGES, labels)]).n == len(IMAGES)  # functions of the package take it as it is
    for layer in result.masks:
        torch_prune.remove(masked.get_submodule(layer), "weight")
    plain = small_net()
    plain.load_state_dict(masked.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(plain(IMAGES), expected)


@pytest.mark.parametrize("format", ["dense", "sparse"])
def test_the_masks_of_a_file(tmp_path: Path, format: str) -> None:
    result = prune(create_model("networks:small_net"), IMAGES, sparsity=0.8, recipe="fast")
    result.save(tmp_path / "x", format=format)
    found = load(tmp_path / "x", small_net())
    assert list(found.masks) == list(result.masks)
    assert all(torch.equal(found.masks[layer], result.masks[layer]) for layer in result.masks)
    assert "4.weight_mask" in masked_for_training(found.model, found.masks).state_dict()


def test_tied_weights_share_their_mask() -> None:
    model = create_model("networks:Shared")
    config = PruneConfig(count=8, only=("a", "b"))
    way = {"rule": "uniform", "score": "magnitude", "repair": "none"}
    result = prune(model, IMAGES, sparsity=0.5, config=config, **way)
    masked = masked_for_training(result.model, result.masks)
    assert masked.get_parameter("b.weight_orig") is masked.get_parameter("b_tied.weight_orig")
    trained(masked)
    assert not masked.get_submodule("b_tied").weight[~result.masks["b"]].any()


def test_a_part_of_a_parameter() -> None:
    model = nn.MultiheadAttention(8, 2)
    masked = masked_for_training(model, Masks({"in_proj_weight.k": torch.zeros(8, 8, dtype=torch.bool)}))
    mask = masked.get_buffer("in_proj_weight_mask")
    assert mask.sum() == 2 * 64
    assert not mask[8:16].any()


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"the mask of layer '2' has shape \(2,\), its weight \(16, 8, 3, 3\)"):
        masked_for_training(small_net(), Masks({"2": torch.ones(2, dtype=torch.bool)}))
