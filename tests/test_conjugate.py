"""Conjugate gradients on supports against the exact solution."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from repairability.algebra import least_squares as module
from repairability.algebra.conjugate import conjugate_on_support
from repairability.algebra.grams import solve_on_support
from repairability.algebra.least_squares import LeastSquares, cholesky_work
from test_alternating import layer_problem


def problem(seed: int, filters: int = 6, inputs: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    """A Gram of well-conditioned inputs in units that differ, right-hand sides, supports."""
    random = torch.Generator().manual_seed(seed)
    data = torch.randn(10 * inputs, inputs, generator=random, dtype=torch.float64)
    data = data + 0.3 * data.roll(1, 1)
    data = data * torch.logspace(-1, 1, inputs, dtype=torch.float64)
    right = torch.randn(filters, inputs, generator=random, dtype=torch.float64) * data.square().mean(0).sqrt()
    support = torch.rand(filters, inputs, generator=random) < 0.5
    support[0], support[1] = True, False
    return data.T @ data / len(data), right, support


def quadratic(x: Tensor, gram: Tensor, right: Tensor) -> Tensor:
    """x'hx / 2 - right'x, per filter."""
    return ((x @ gram) * x).sum(1) / 2 - (right * x).sum(1)


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_the_exact_solution(seed: int) -> None:
    gram, right, support = problem(seed)
    exact = solve_on_support(gram, right, support)
    for start in (torch.zeros_like(right), right, exact + 0.1 * exact.flip(0)):
        found = conjugate_on_support(gram, right, support, start)
        assert found.dtype == right.dtype
        units = gram.diagonal().sqrt()
        assert float(((found - exact) * units).norm()) <= 1e-3 * float((exact * units).norm())


@pytest.mark.parametrize("steps", [0, 1, 5, 60])
def test_zero_outside_the_support_wherever_it_begins(steps: int) -> None:
    gram, right, support = problem(5)
    found = conjugate_on_support(gram, right, support, torch.ones_like(right), steps=steps)
    assert not found[~support].any()
    assert found.isfinite().all()


@pytest.mark.parametrize("ridge", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize("seed", range(3))
def test_the_quadratic_never_rises(seed: int, ridge: float) -> None:
    """Also where the Gram has hardly a rank: every input twice."""
    gram, right, support = problem(seed, inputs=20)
    gram, right, support = gram.repeat(2, 2), right.repeat(1, 2), support.repeat(1, 2)
    gram.diagonal().add_(ridge * gram.diagonal().mean())
    start = torch.randn(right.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * support
    last = quadratic(start, gram, right)
    slack = 1e-5 * last.abs().max()  # float32
    for steps in (1, 2, 4, 8, 16, 60):
        found = conjugate_on_support(gram, right, support, start, steps=steps)
        now = quadratic(found, gram, right)
        assert bool((now <= last + slack).all())
        last = now


def test_who_begins_at_the_answer_stays() -> None:
    gram, right, support = problem(7)
    exact = solve_on_support(gram, right, support)
    found = conjugate_on_support(gram, right, support, exact)
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)


def test_nothing_wanted_nothing_given() -> None:
    gram, right, support = problem(8)
    zero = torch.zeros_like(right)
    assert not conjugate_on_support(gram, zero, support, zero).any()
    assert not conjugate_on_support(torch.zeros_like(gram), zero, support, zero).any()


def test_the_arguments_are_only_read() -> None:
    given = *problem(9), torch.ones(6, 30)
    before = [x.clone() for x in given]
    conjugate_on_support(*given)
    assert all(x.equal(y) for x, y in zip(before, given, strict=True))


# --- as a refit uses it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_refit_from_a_start_ends_near_the_exact_one(seed: int) -> None:
    given = layer_problem(seed=seed, inputs=12)
    support = torch.rand(given.weights.shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    exact = given.refitted(support, 1e-3)
    moved = replace(given, cross=given.cross * 1.02)  # nearly the same problem
    found, wanted = moved.refitted(support, 1e-3, start=exact), moved.refitted(support, 1e-3)
    assert not found[~support].any()
    assert bool((moved.error(found).sum() <= moved.error(exact).sum()).all())
    torch.testing.assert_close(moved.error(found), moved.error(wanted), rtol=0.02, atol=1e-4)


def test_the_best_on_everything_is_the_refit_on_everything() -> None:
    given = layer_problem(seed=4)
    everything = torch.ones_like(given.weights, dtype=torch.bool)
    torch.testing.assert_close(given.best(1e-2), given.refitted(everything, 1e-2))
    torch.testing.assert_close(given.best(1e9), given.weights, rtol=0, atol=1e-6)  # a strong ridge holds them


def test_work_is_counted_for_filters_that_lost_a_weight() -> None:
    support = torch.ones(3, 6, dtype=torch.bool)
    assert cholesky_work(support) == 0.0
    support[1, :2] = False
    assert cholesky_work(support) == pytest.approx(4**3 / 6 + 30 * 4**2)
    support[2] = False
    assert cholesky_work(support) == pytest.approx(4**3 / 6 + 30 * 4**2)


def test_where_factors_are_dear_the_refit_is_conjugate(monkeypatch: pytest.MonkeyPatch) -> None:
    given = layer_problem(seed=5, inputs=12)
    support = torch.rand(given.weights.shape, generator=torch.Generator().manual_seed(5)) < 0.6
    exact = LeastSquares.refitted(given, support, 1e-3)
    monkeypatch.setattr(module, "cholesky_work", lambda _: float("inf"))
    found = given.refitted(support, 1e-3)
    assert not found.equal(exact)
    torch.testing.assert_close(given.error(found), given.error(exact), rtol=1e-3, atol=1e-5)
