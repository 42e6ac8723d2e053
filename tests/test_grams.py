"""Solving on supports: filter by filter, in batches, singular ones too."""

from __future__ import annotations

import pytest
import torch

import reference
from repairability import InputError
from repairability.algebra import grams
from repairability.algebra.grams import solve_on_support
from test_surgeon import problem, smooth_problem


@pytest.mark.parametrize("batch", [1, 8 * 30 * 30 * 3, grams.BATCH_BYTES])
def test_solving_on_supports_is_solving_filter_by_filter(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grams, "BATCH_BYTES", batch)
    right, gram, _ = smooth_problem(9, 20, 30, 200)
    density = torch.linspace(0, 1, 20)[:, None]
    support = torch.rand(20, 30, generator=torch.Generator().manual_seed(9)) < density
    support[0], support[19] = False, True
    found = solve_on_support(gram, right, support)
    assert not found[~support].any()
    torch.testing.assert_close(found, reference.solve_on(gram, right, support), rtol=1e-10, atol=1e-12)


def test_solving_on_a_singular_support_still_solves() -> None:
    weights, gram, _ = problem(10, 6, 30, samples=7)
    gram[:, 4], gram[4] = 0.0, 0.0
    support = torch.rand(6, 30, generator=torch.Generator().manual_seed(10)) < 0.7
    support[:, 4] = True
    right = weights @ gram
    found = solve_on_support(gram, right, support)
    assert found.isfinite().all()
    assert not found[~support].any()
    left = torch.where(support, found @ gram - right, 0.0)  # consistent: the right side lies in the Gram's range
    assert float(left.norm() / right.norm()) < 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_rounding_is_not_taken_for_a_pivot(seed: int) -> None:
    """Proportional inputs leave a pivot of rounding, by chance positive; an answer from it would be some 1e16 large."""
    _, one, _ = problem(seed, 1, 1)
    gram = one * torch.tensor([[1.0, 3.0], [3.0, 9.0]], dtype=torch.float64)
    found = solve_on_support(gram, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
    assert float(found.abs().max()) < 1e14 / float(gram.diagonal().mean())


def test_a_gram_that_is_no_number_is_an_error() -> None:
    """And not a ridge that grows for ever."""
    gram = torch.eye(3, dtype=torch.float64)
    gram[1, 1] = torch.nan
    with pytest.raises(InputError, match="nan or inf"):
        solve_on_support(gram, torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool))


def test_equal_supports_share_one_factorisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answer as one by one, from as many factorisations as there are supports."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(90, 12, dtype=torch.float64, generator=random)
    gram, right = x.T @ x / 90, torch.randn(9, 12, dtype=torch.float64, generator=random)
    support = torch.rand(9, 12, generator=random) > 0.4
    support[[1, 4, 8]] = True
    support[[2, 6]] = support[2].clone()
    support[[0, 3]] = False
    single = torch.cat([grams.solve_on_support(gram, right[i : i + 1], support[i : i + 1]) for i in range(9)])
    sizes: list[int] = []
    plain = grams.cholesky

    def counting(matrices: torch.Tensor) -> torch.Tensor:
        sizes.append(len(matrices))
        return plain(matrices)

    monkeypatch.setattr(grams, "cholesky", counting)
    together = grams.solve_on_support(gram, right, support)
    torch.testing.assert_close(together, single, rtol=1e-10, atol=1e-12)
    assert sum(sizes) == 2 + 2  # the full one, the pair's, and two alone; the empty ones need none
    assert sorted(x.tolist() for x in grams.equal_rows(support)) == [[0, 3], [1, 4, 8], [2, 6]]
