from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from repairability.algebra.least_squares import LeastSquares
from repairability.algebra.moments import InputMoments
from repairability.network.unfold import Geometry
from test_unfold import padded


def geometry_of(layer: nn.Conv2d | nn.Linear) -> Geometry:
    """As the layer's own product has it; one that is not padded with zeros is padded before."""
    if isinstance(layer, nn.Linear):
        return Geometry()
    padding = layer.padding if layer.padding_mode == "zeros" else 0
    return Geometry.convolution(layer.kernel_size, layer.stride, padding, layer.dilation, layer.groups)


def test_any_split_gives_the_same_moments() -> None:
    x, y = torch.randn(2, 5, 90, dtype=torch.float64), torch.randn(2, 3, 90, dtype=torch.float64)
    whole, parts = InputMoments(2, 5, 3), InputMoments(2, 5, 3)
    whole.update(x, y)
    for a, b in zip(x.split(17, -1), y.split(17, -1), strict=True):
        parts.update(a, b)
    for centred in (False, True):
        torch.testing.assert_close(whole.gram(centred=centred), parts.gram(centred=centred))
        torch.testing.assert_close(whole.cross(centred=centred), parts.cross(centred=centred))
        torch.testing.assert_close(whole.power(centred=centred), parts.power(centred=centred))
    torch.testing.assert_close(whole.gram(centred=True)[0], torch.cov(x[0], correction=0))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(4, 6, 3, padding=1), (5, 4, 7, 6)),
        (nn.Conv2d(4, 6, 3, padding=1), (5, 4, 2, 1)),
        (nn.Conv2d(4, 6, (5, 2), stride=(2, 1), padding=(1, 0), dilation=(2, 1), groups=2), (3, 4, 13, 8)),
        (nn.Conv2d(3, 3, 3, padding="same", padding_mode="circular"), (2, 3, 5, 5)),
        (nn.Conv2d(3, 3, 3, groups=3), (2, 3, 5, 5)),
        (nn.Conv1d(3, 5, 4), (2, 3, 10)),
        (nn.Conv3d(2, 3, 3, padding=1), (2, 2, 4, 3, 5)),
    ],
)
def test_a_sliding_window_gives_the_moments_of_its_columns(layer: nn.Conv2d, shape: tuple[int, ...]) -> None:
    random = torch.Generator().manual_seed(0)
    geometry, x = geometry_of(layer), torch.randn(shape, generator=random)
    with torch.no_grad():
        y = layer(x)
    x = padded(layer, x)
    groups, filters, inputs = geometry.groups, y.shape[1] // geometry.groups, layer.get_parameter("weight")[0].numel()
    plain, sliding = InputMoments(groups, inputs, filters), InputMoments(groups, inputs, filters)
    columns = geometry.unfold(x, geometry.every_tap())
    plain.update(columns.view(groups, inputs, -1), y.flatten(2).permute(1, 2, 0).reshape(groups, filters, -1))
    assert geometry.slides
    columns = geometry.unfold_but_last(x)
    rows = y.movedim(-1, 2).flatten(3) if y.dim() > 3 else y[..., None]  # [N, C, last, others]
    rows = rows.permute(1, 2, 3, 0).reshape(groups, filters, y.shape[-1], -1)
    sliding.update_sliding(columns.view(groups, -1, *columns.shape[1:]), rows)
    assert sliding.n == plain.n
    for name in ("xx", "xy", "x", "y", "yy"):
        torch.testing.assert_close(getattr(sliding, name), getattr(plain, name), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 3, stride=2), nn.Conv2d(2, 2, 3, dilation=2), nn.Linear(2, 2)]
)
def test_what_does_not_slide(layer: nn.Conv2d | nn.Linear) -> None:
    assert not geometry_of(layer).slides


def test_the_error_of_other_weights() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(1, 4, 50, dtype=torch.float64, generator=random)
    y = torch.randn(1, 2, 50, dtype=torch.float64, generator=random)
    moments = InputMoments(1, 4, 2)
    moments.update(x, y)
    weights = torch.randn(1, 2, 4, dtype=torch.float64, generator=random)
    plain = LeastSquares.of(moments, weights, torch.ones(1, 2), centred=False)
    torch.testing.assert_close(plain.error(weights), (y - weights @ x).square().mean(-1))
    centred = LeastSquares.of(moments, weights, torch.ones(1, 2), centred=True)
    torch.testing.assert_close(centred.error(weights), (y - weights @ x).var(-1, correction=0))


def test_a_gram_of_nothing_is_damped_to_ones() -> None:
    moments = InputMoments(1, 3, 1)
    moments.update(torch.zeros(1, 3, 5), torch.zeros(1, 1, 5))
    nothing = LeastSquares.of(moments, torch.ones(1, 1, 3, dtype=torch.float64), torch.ones(1, 1), centred=True)
    assert torch.equal(nothing.damped(0, 1e-3), torch.eye(3, dtype=torch.float64))


def test_the_ridge_grows_with_the_unknowns_per_sample() -> None:
    """As many samples as unknowns: without it the fit meets every sample, noise and all, and nothing else."""
    random = torch.Generator().manual_seed(0)
    truth = torch.randn(1, 1, 32, dtype=torch.float64, generator=random)

    def problem(count: int) -> LeastSquares:
        x = torch.randn(1, 32, count, dtype=torch.float64, generator=random)
        y = truth @ x + 2 * torch.randn(1, 1, count, dtype=torch.float64, generator=random)
        moments = InputMoments(1, 32, 1)
        moments.update(x, y)
        return LeastSquares.of(moments, truth, torch.ones(1, 1), centred=False)

    scarce, plenty = problem(32), problem(3200)
    for given, expected in ((scarce, 1e-3 * 101), (plenty, 1e-3 * 2)):
        added = given.damped(0, 1e-3) - given.gram[0]
        torch.testing.assert_close(added.diagonal(), (expected * given.gram[0].diagonal().mean()).expand(32))
        assert float(given.damped(0, 0.0).sub(given.gram[0]).abs().max()) < 1e-11
    everywhere = torch.ones(1, 1, 32, dtype=torch.bool)
    blind = float((dataclasses.replace(scarce, samples=10**9).refitted(everywhere, 1e-3) - truth).norm())
    assert float((scarce.refitted(everywhere, 1e-3) - truth).norm()) < 0.5 * blind
