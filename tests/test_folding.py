from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as trees

from repairability import create_model
from repairability._torch import batch_norms
from repairability.network.folding import for_inference
from test_sacred import complete_state, same

IMAGES = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def trained(model: nn.Module) -> nn.Module:
    """With statistics and factors that are not those of a fresh BatchNorm."""
    random = torch.Generator().manual_seed(1)
    for norm in batch_norms(model).values():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(0.1 * torch.randn(norm.num_features, generator=random))
        norm.running_var.copy_(0.5 + torch.rand(norm.num_features, generator=random))
        with torch.no_grad():
            norm.weight.copy_(0.5 + torch.rand(norm.num_features, generator=random))
    return model


class Twice(nn.Module):
    """A convolution whose output goes into a BatchNorm and past it: it must not be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        out: Tensor = self.head((self.norm(x) + x).mean((2, 3)))
        return out


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "vgg16_bn_quarter", "mobilenet_v2", "networks:small_net"])
def test_the_same_outputs_without_batch_norm(name: str) -> None:
    model = trained(create_model(name, num_classes=10))
    before = complete_state(model)
    fast = for_inference(model, IMAGES)
    with torch.no_grad():
        torch.testing.assert_close(fast(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-4)
    assert not batch_norms(fast)
    assert same(complete_state(model), before)


def test_an_output_that_is_used_twice_is_not_folded() -> None:
    model = trained(Twice()).eval()
    fast = for_inference(model, IMAGES)
    with torch.no_grad():
        torch.testing.assert_close(fast(IMAGES), model(IMAGES))
    assert batch_norms(fast)


@dataclass
class Answer:
    logits: Tensor


class Hidden(nn.Module):
    """As Twice, in an object of one's own, or beside a mask."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.twice, self.way = Twice(), way

    def forward(self, x: Tensor) -> object:
        out = self.twice(x)
        ways = {"object": Answer(out), "mask": (out, out > 0), "only a mask": out > 0}
        ways |= {"beside": (Answer(out), x.mean()), "scores": (x.mean(), (1e4 * out).long())}
        return ways[self.way]


@pytest.mark.parametrize("way", ["object", "mask", "only a mask", "beside", "scores"])
def test_what_cannot_be_checked_is_not_folded(way: str) -> None:
    model = trained(Hidden(way)).eval()
    fast = for_inference(model, IMAGES)
    assert batch_norms(fast)
    given, expected = (
        [x.logits if isinstance(x, Answer) else x for x in trees.tree_leaves(net(IMAGES))] for net in (fast, model)
    )
    for ours, theirs in zip(given, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
