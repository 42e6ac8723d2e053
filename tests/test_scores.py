from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from repairability import InputError
from repairability.algebra.least_squares import LeastSquares
from repairability.algebra.moments import InputMoments
from repairability.masks import magnitude_mask
from repairability.scores import SCORES, SecondOrder, get_score, second_order


def problem(groups: int = 2, filters: int = 3, inputs: int = 6, seed: int = 0) -> LeastSquares:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(groups, inputs, 200, generator=random, dtype=torch.float64)
    x[:, 1] += x[:, 0]  # correlated inputs
    x += 0.5
    weights = torch.randn(groups, filters, inputs, generator=random, dtype=torch.float64)
    moments = InputMoments(groups, inputs, filters)
    moments.update(x, weights @ x)
    unit = torch.rand(groups, filters, generator=random, dtype=torch.float64) + 0.5
    return LeastSquares.of(moments, weights, unit, centred=True)


@pytest.mark.parametrize("name", list(SCORES))
def test_counts_are_exact_and_masks_nest(name: str) -> None:
    """But for the score that lets weights come back."""
    given = problem()
    total, before = given.weights.numel(), torch.ones_like(given.weights, dtype=torch.bool)
    for count in (0, 1, 7, 20, total - 1, total):
        mask = SCORES[name](given, count)
        assert mask.dtype == torch.bool
        assert int((~mask).sum()) == count
        assert name == "alternating" or bool((before | ~mask).all())
        before = mask


def test_magnitude_is_the_masks_own_rule() -> None:
    given = problem()
    expected = magnitude_mask(given.weights.abs().flatten().numpy(), 11)
    assert np.array_equal(SCORES["magnitude"](given, 11).flatten().numpy(), expected)


def test_activation_weighs_by_the_input() -> None:
    given = problem()
    given.square[:, 2] = 0.0  # an input that is never there
    assert not SCORES["activation"](given, 6)[:, :, 2].any()


def loss(given: LeastSquares, mask: Tensor, ridge: float) -> float:
    """Of the best weights on the support, in units of the output: by brute force."""
    total = 0.0
    for g in range(len(given.weights)):
        gram = given.damped(g, ridge)
        for r in range(given.weights.shape[1]):
            kept = mask[g, r]
            best = given.weights[g, r]  # y = x'w exactly, so the optimum on all inputs is w itself
            d = -best.clone()
            if kept.any():
                right = (gram @ best)[kept]
                d[kept] += torch.linalg.solve(gram[kept][:, kept], right)
            total += float(given.unit[g, r] ** 2 * d @ gram @ d)
    return total


def test_second_order_is_brute_force_removal_across_filters() -> None:
    """Remove, one after another over the whole layer, whatever raises the error least; here all filters are free."""
    given, ridge = problem(groups=1, filters=2, inputs=4), 1e-3
    mask = torch.ones_like(given.weights, dtype=torch.bool)
    for count in range(1, 7):
        costs = {}
        for index in mask.flatten().nonzero().flatten().tolist():
            trial = mask.clone()
            trial.view(-1)[index] = False
            costs[index] = loss(given, trial, ridge)
        mask.view(-1)[min(costs, key=lambda i: costs[i])] = False
        found = SecondOrder(ridge)(given, count)
        assert loss(given, found, ridge) <= loss(given, mask, ridge) * (1 + 1e-9)


def test_second_order_beats_magnitude_where_inputs_are_correlated() -> None:
    given = problem(groups=1, filters=8, inputs=30, seed=4)
    for count in (60, 120, 200):
        ours, theirs = (loss(given, SCORES[name](given, count), 1e-3) for name in ("second_order", "magnitude"))
        assert ours < theirs


def test_wide_filters_are_cut_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(groups=1, filters=4, inputs=40)
    exact = loss(given, SecondOrder()(given, 140), 1e-3)
    monkeypatch.setattr(second_order, "EXACT", 16)
    monkeypatch.setattr(second_order, "LEFT", 20)
    called = []
    original = second_order.wide_trace
    monkeypatch.setattr(second_order, "wide_trace", lambda *a, **k: called.append(k["limit"]) or original(*a, **k))
    mask = SecondOrder()(given, 140)
    assert called == [20]
    assert int((~mask).sum()) == 140
    assert loss(given, mask, 1e-3) < 1.5 * exact


def test_names_and_callables() -> None:
    def own(problem: LeastSquares, count: int) -> Tensor:
        return problem.weights != 0

    assert get_score(own).name == "own"
    assert get_score(own).looks_at_inputs
    assert get_score("second_order") == SCORES["second_order"]
    assert [name for name in SCORES if get_score(name).looks_at_inputs] == ["activation", "second_order", "alternating"]
    assert all(get_score(name).name == name for name in SCORES)
    assert get_score(SecondOrder(ridge=0.5)).name == "SecondOrder(ridge=0.5)"
    with pytest.raises(InputError, match="unknown score 'second-order'.*second_order"):
        get_score("second-order")


def test_second_order_on_a_gram_that_rounding_left_indefinite() -> None:
    """Centred moments of inputs that hardly vary are differences of large sums: some eigenvalues fall below zero."""
    random = torch.Generator().manual_seed(0)
    weights = torch.randn(1, 3, 6, dtype=torch.float64, generator=random)
    gram = torch.eye(6, dtype=torch.float64)[None].clone()
    gram[0, 0, 1] = gram[0, 1, 0] = 1.5
    problem = LeastSquares(weights, gram, gram @ weights.mT, torch.ones(1, 3), torch.ones(1, 6), torch.ones(1, 3), 999)
    mask = get_score("second_order")(problem, 9)
    assert int((~mask).sum()) == 9
