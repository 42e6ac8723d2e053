from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from repairability import Allocation, InputError
from repairability.allocation import check_sparsity, pruned_count, target_count

TOTALS = {"a": 10, "b": 30}


def plan(**sparsities: float) -> Allocation:
    return Allocation(sparsities, TOTALS, 50, "erk", 0.5)


@given(st.integers(0, 10**7), st.floats(0, 1))
def test_pruned_count_agrees_with_the_reference(total: int, sparsity: float) -> None:
    assert pruned_count(total, sparsity) == reference.pruned_count(total, sparsity)


def test_pruned_count_rounds_half_to_even() -> None:
    assert [pruned_count(n, 0.5) for n in (1, 3, 5, 7)] == [0, 2, 2, 4]
    assert target_count([1, 3, 5, 7], 0.5) == 8


@given(st.integers(1, 10**8), st.data())
def test_a_count_survives_the_way_through_a_sparsity(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, total))
    assert pruned_count(total, count / total) == count


def test_two_budgets() -> None:
    a = plan(a=0.5, b=0.8)
    assert a.pruned("a") == 5
    assert a.pruned_total == 29
    assert a.sparsity == 29 / 40
    assert a.global_sparsity == 29 / 50


def test_it_is_an_immutable_mapping() -> None:
    a = plan(b=0.8, a=0.5)
    assert dict(a) == {"a": 0.5, "b": 0.8}
    assert list(a) == ["a", "b"]  # the order of the layers, not of the call
    with pytest.raises(TypeError):
        a.sparsities["a"] = 0.1
    with pytest.raises(AttributeError):
        a.rule = "x"
    assert "c" not in a
    assert a.get("c") is None


@given(st.floats(0, 1), st.floats(0, 1), st.none() | st.floats(0, 1))
def test_json_and_csv_there_and_back(a: float, b: float, target: float | None) -> None:
    given = Allocation({"a": a, "b": b}, TOTALS, 50, "rr", target)
    assert Allocation.from_json(given.to_json()) == given
    assert Allocation.from_csv(given.to_csv()) == given
    assert Allocation.from_csv(replace(given, target=0.0).to_csv()).target == 0


def test_prints_both_sparsities() -> None:
    text = str(plan(a=0.5, b=0.8))
    assert "rule erk, target 50.00 %: 72.50 % of the prunable weights, 58.00 % of all" in text


@pytest.mark.parametrize("value", [1.2, -0.1, math.nan, math.inf, "0.5", None, True, 95, np.array([0.5, 0.6])])
def test_refused_sparsities(value: object) -> None:
    with pytest.raises(InputError, match=r"the sparsity of layer 'a' must be .*between 0 and 1"):
        Allocation({"a": value, "b": 0.1}, TOTALS, 50)


def test_a_percentage_is_recognised() -> None:
    with pytest.raises(InputError, match=r"not 95; did you mean 0.95\?"):
        check_sparsity(95)


def test_unknown_and_missing_layers() -> None:
    with pytest.raises(InputError, match="unknown layer 'c'; known: a, b"):
        plan(a=0.1, b=0.1, c=0.1)
    with pytest.raises(InputError, match="no sparsity for b"):
        plan(a=0.1)
    with pytest.raises(InputError, match="n_all = 3 is less than the 40 prunable"):
        Allocation({"a": 0, "b": 0}, TOTALS, 3)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"layers": [{}]}', '{"layers": 3}'])
def test_json_that_is_none(text: str) -> None:
    with pytest.raises(InputError, match="this is not JSON|this JSON is not of type Allocation"):
        Allocation.from_json(text)


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "name,total,pruned,sparsity,rule,target,n_all\nx,many,1,0.5,r,,9\n"]
)
def test_csv_that_is_none(text: str) -> None:
    with pytest.raises(InputError, match="these rows hold no Allocation|must be a whole number, not .many"):
        Allocation.from_csv(text)


def test_csv_of_two_allocations_is_refused() -> None:
    rows = plan(a=0.1, b=0.2).to_csv() + Allocation({"a": 0, "b": 0}, TOTALS, 50).to_csv().split("\n", 1)[1]
    with pytest.raises(InputError, match="several allocations"):
        Allocation.from_csv(rows)
