"""How many images are given decides how good a repair is, never whether the network is ruined."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from repairability import CalibrationSet, evaluate, load_data, prune
from repairability.calibration import BN_BATCH_SIZE, COUNT
from repairability.network.samples import Samples
from repairability.training import digits_network

MARGIN = 0.05
"""Of accuracy: draws of images differ by two points, BatchNorm on a handful of them lost 27."""


@cache
def digits() -> tuple[Any, Any, Any]:
    data = load_data("digits")
    return data, digits_network(data), list(data.test.batches())


@cache
def accuracy(recipe: str, images: int) -> float:
    data, model, test = digits()
    return evaluate(prune(model, data.unlabeled(images, 0), sparsity=0.9, recipe=recipe).model, test).top1


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("recipe", ["paper", "fast"])
@pytest.mark.parametrize("more", [1, 2, 32, 127, 128, 129])
def test_some_images_more_than_the_statistics_take(more: int, recipe: str) -> None:
    assert accuracy(recipe, COUNT + more) > accuracy(recipe, COUNT) - MARGIN


@pytest.mark.usefixtures("quiet")
def test_this_would_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is ruined where BatchNorm learns from the one image behind the statistics' own."""
    data, model, test = digits()
    behind = property(lambda self: self.held[self.count :])
    monkeypatch.setattr(CalibrationSet, "recalibration_samples", behind)
    ruined = prune(model, data.unlabeled(COUNT + 1, 0), sparsity=0.9, recipe="paper").model
    assert evaluate(ruined, test).top1 < accuracy("paper", COUNT) - 2 * MARGIN


@pytest.mark.parametrize("more", [0, 1, BN_BATCH_SIZE - 1, BN_BATCH_SIZE, BN_BATCH_SIZE + 1])
def test_which_images_serve_batchnorm(more: int) -> None:
    """Those behind the statistics' own, where they are a batch or more; else all."""
    images = torch.randn(COUNT + more, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    served = CalibrationSet(images).recalibration_samples
    assert isinstance(served, Samples)
    assert len(served) == (more if more >= BN_BATCH_SIZE else COUNT + more)
