from __future__ import annotations

import torch

from repairability.moments import InputMoments, LeastSquares


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
