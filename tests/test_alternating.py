"""Alternating directions against the exact surgeon and one-shot magnitude, on correlated inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from repairability import InputError
from repairability.algebra.alternating import alternating, alternating_levels
from repairability.algebra.least_squares import LeastSquares
from repairability.algebra.moments import InputMoments
from repairability.algebra.surgeon import mask_of, removal_trace
from repairability.scores import Activation, Alternating
from test_surgeon import smooth_problem, true_loss

SEARCH = {"stages": 20, "steps": 10}


def layer_problem(groups: int = 2, filters: int = 4, inputs: int = 9, seed: int = 0) -> LeastSquares:
    """Inputs that correlate, targets that the dense weights do not quite give."""
    random = torch.Generator().manual_seed(seed)
    mixing = torch.eye(inputs) + 0.4 * torch.randn(groups, inputs, inputs, generator=random)
    x = (mixing @ torch.randn(groups, inputs, 400, generator=random)).double() + 0.3
    weights = torch.randn(groups, filters, inputs, generator=random).double()
    moments = InputMoments(groups, inputs, filters)
    moments.update(x, weights @ x + 0.1 * torch.randn(groups, filters, 400, generator=random))
    unit = torch.rand(groups, filters, generator=random).double() + 0.5
    return LeastSquares.of(moments, weights, unit, centred=True)


def chosen(weights: Tensor, gram: Tensor, scale: Tensor, count: int) -> Tensor:
    """The mask [R, K] of one group."""
    values = alternating(weights[None], gram[None], scale[None], count, **SEARCH)[0].abs()
    mask = torch.ones(values.numel(), dtype=torch.bool)
    mask[values.flatten().argsort(stable=True)[:count]] = False
    return mask.view(values.shape)


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_exactly_as_many_go_as_are_asked(groups: int) -> None:
    given = layer_problem(groups)
    total = given.weights.numel()
    for count in (0, 1, total // 3, total // 2, total - 3, total - 1, total):
        mask = Alternating()(given, count)
        assert mask.dtype == torch.bool
        assert mask.shape == given.weights.shape
        assert int((~mask).sum()) == count
    with pytest.raises(InputError, match=f"cannot remove {total + 1} of {total} weights"):
        Alternating()(given, total + 1)


def test_ties_are_counted_exactly() -> None:
    """Equal weights on inputs that do not correlate: all values are equal, and still `count` go."""
    weights = torch.ones(2, 3, 5, dtype=torch.float64)
    gram = torch.eye(5, dtype=torch.float64).expand(2, 5, 5)
    given = LeastSquares(weights, gram, weights.mT, weights.square().sum(-1), torch.ones(2, 5), torch.ones(2, 3), 10**6)
    for count in (0, 1, 14, 29, 30):
        assert int((~Alternating()(given, count)).sum()) == count


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("seed", range(4))
def test_never_above_one_shot_magnitude_and_near_the_exact_surgeon(seed: int, share: float) -> None:
    weights, gram, scale = smooth_problem(seed, 8, 40, 400)
    count = round(share * weights.numel())
    found = true_loss(weights, gram, scale, chosen(weights, gram, scale, count))
    worth = weights.abs() * scale.sqrt()[:, None] * gram.diagonal().sqrt()
    oneshot = torch.ones(weights.numel(), dtype=torch.bool)
    oneshot[worth.flatten().argsort()[:count]] = False
    assert found <= true_loss(weights, gram, scale, oneshot.view(weights.shape))
    surgeon = true_loss(weights, gram, scale, mask_of(removal_trace(weights, gram, scale), count))
    assert found <= 1.03 * surgeon


def test_uncorrelated_inputs_lose_the_smallest_weights() -> None:
    """A Gram that is diagonal: each weight is worth scale w^2 h_ii, and the search has nothing to find."""
    weights, _, scale = smooth_problem(3, 5, 12, 100)
    diagonal = torch.linspace(0.1, 4.0, 12, dtype=torch.float64)
    worth = scale[:, None] * weights.square() * diagonal
    kept = torch.ones(60, dtype=torch.bool)
    kept[worth.flatten().argsort()[:35]] = False
    assert chosen(weights, diagonal.diag(), scale, 35).equal(kept.view(5, 12))


@pytest.mark.parametrize("seed", range(3))
def test_the_units_of_the_inputs_do_not_matter(seed: int) -> None:
    """Inputs times u, weights over u, u powers of 2: the same problem, to the last bit."""
    weights, gram, scale = smooth_problem(seed, 6, 24, 300)
    units = 2.0 ** torch.randint(-6, 7, (24,), generator=torch.Generator().manual_seed(seed)).double()
    other = chosen(weights / units, gram * units[:, None] * units, scale, 100)
    assert other.equal(chosen(weights, gram, scale, 100))
    assert chosen(weights, 4.0**20 * gram, scale, 100).equal(other)
    assert chosen(weights, gram, 4.0**-20 * scale, 100).equal(other)


def test_filters_that_are_worth_nothing_lose_first() -> None:
    weights, gram, scale = smooth_problem(5, 6, 20, 300)
    scale[[1, 4]] = 0.0
    assert chosen(weights, gram, scale, 40).sum(1).tolist() == [20, 0, 20, 20, 0, 20]
    assert not chosen(weights, gram, scale, 70)[[1, 4]].any()
    given = layer_problem(1)
    unit = given.unit.clone()
    unit[0, 2] = 0.0
    assert Alternating()(replace(given, unit=unit), 9).sum(2).tolist() == [[9, 9, 0, 9]]


def test_inputs_that_are_never_there_lose_first() -> None:
    weights, gram, scale = smooth_problem(6, 4, 16, 300)
    gram[[3, 9]], gram[:, [3, 9]] = 0.0, 0.0
    mask = chosen(weights, gram, scale, 8)
    assert not mask[:, [3, 9]].any()
    assert int(mask.sum()) == 56


def test_the_order_of_filters_does_not_matter() -> None:
    weights, gram, scale = smooth_problem(7, 8, 24, 300)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    assert chosen(weights[order], gram, scale[order], 130).equal(chosen(weights, gram, scale, 130)[order])


def test_nothing_but_zeros() -> None:
    values = alternating(torch.zeros(1, 2, 3), torch.zeros(1, 3, 3), torch.ones(1, 2), 4, **SEARCH)
    assert not values.any()


def test_what_does_not_fit_is_refused() -> None:
    weights, gram, scale = (x[None] for x in smooth_problem(8, 3, 6, 100))
    for bad in (
        (weights * torch.nan, gram, scale),
        (weights, gram * torch.nan, scale),
        (weights, gram, scale * torch.inf),
        (weights, gram, -scale),
    ):
        with pytest.raises(InputError, match="weights, grams and scale must be finite"):
            alternating(*bad, 4, **SEARCH)
    for bad in ((weights[..., :4], gram, scale), (weights, gram, scale[:, :2]), (weights[0], gram[0], scale[0])):
        with pytest.raises(InputError, match="do not fit"):
            alternating(*bad, 4, **SEARCH)
    for count in (-1, 19):
        with pytest.raises(InputError, match=f"cannot remove {count} of 18 weights"):
            alternating(weights, gram, scale, count, **SEARCH)


def test_the_inputs_are_only_read() -> None:
    given = tuple(x[None] for x in smooth_problem(9, 3, 6, 100))
    before = [x.clone() for x in given]
    alternating(*given, 7, **SEARCH)
    list(alternating_levels(*given, [2, 9], steps=5))
    assert all(x.equal(y) for x, y in zip(before, given, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_levels_are_exact_in_count_and_their_errors_rise(seed: int) -> None:
    given, ridge = layer_problem(seed=seed), 1e-3
    total = given.weights.numel()
    counts = [0, total // 4, total // 2, 3 * total // 4, total - 4, total]
    levels = Alternating(ridge).levels(given, counts, ridge)
    errors = []
    for count, (mask, error) in zip(counts, levels, strict=True):
        assert int((~mask).sum()) == count
        torch.testing.assert_close(error, given.error(given.refitted(mask, ridge)), rtol=1e-2, atol=1e-5)
        errors.append(float((error * given.unit.square()).sum()))
    assert errors == sorted(errors)
    torch.testing.assert_close(levels[-1][1], given.power)  # nothing left


@pytest.mark.parametrize("seed", range(3))
def test_levels_are_worth_their_search(seed: int) -> None:
    """Between a search for each and a choice in one shot, also where inputs correlate strongly."""
    given = layer_problem(groups=1, filters=8, inputs=36, seed=seed)
    counts = [72, 144, 216, 259]

    def left(error: Tensor) -> float:
        return float((error * given.unit.square()).sum())

    for count, (_, error) in zip(counts, Alternating().levels(given, counts, 1e-3), strict=True):
        alone = given.error(given.refitted(Alternating()(given, count), 1e-3))
        oneshot = given.error(given.refitted(Activation()(given, count), 1e-3))
        assert left(alone) <= left(error) <= 0.9 * left(oneshot)
