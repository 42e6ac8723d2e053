"""Products and inverses by oneDNN: equal to torch's own, whatever the layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from repairability.algebra import multiply
from repairability.algebra.multiply import HALVED, SMALL, inverse, times


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.mT.contiguous().mT,
    "rows with gaps": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "columns with gaps": lambda x: torch.cat([x.mT, x.mT], -1)[..., : x.shape[-2]].mT,
}


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_a_product_does_not_hang_on_the_layout(left: str, right: str) -> None:
    a, b = drawn(160, 170), drawn(170, 180, seed=1)
    assert a.shape[0] * b.numel() >= SMALL
    found = times(LAYOUTS[left](a), LAYOUTS[right](b))
    torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 160, 170, 180), (3, 160, 170, 180), (1, 3, 0, 5)])
def test_products_of_groups(shape: tuple[int, int, int, int]) -> None:
    groups, rows, inner, columns = shape
    a, b = drawn(groups, rows, inner), drawn(groups, inner, columns, seed=1)
    torch.testing.assert_close(times(a, b), a @ b, rtol=1e-4, atol=1e-4)


def test_other_kinds_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(160, 170), drawn(170, 180, seed=1)
    assert torch.equal(times(a.double(), b.double()), a.double() @ b.double())
    monkeypatch.setattr(multiply, "_has_onednn", lambda: False)
    assert torch.equal(times(a, b), a @ b)


@pytest.mark.parametrize("size", [1, 7, HALVED, HALVED + 1, 2 * HALVED + 3])
def test_the_inverse_of_a_gram(size: int) -> None:
    x = drawn(size, size + 5)
    gram = x @ x.mT / size + 0.1 * torch.eye(size)
    expected = torch.linalg.inv(gram.double())
    found = inverse(gram).double()
    assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def test_each_inverse_of_several_and_of_one_that_has_none() -> None:
    x = drawn(2, HALVED + 1, 4)
    grams = x @ x.mT  # of rank 4: a ridge is added until there is an inverse
    found = inverse(grams)
    assert found.isfinite().all()
    assert torch.equal(found[1], inverse(grams[1]))
