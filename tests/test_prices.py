"""Prices: what layers cost at each sparsity, and allocations that save a share of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from repairability import BudgetError, InputError, allocate
from repairability.allocation import Allocation
from repairability.curves import Curves
from repairability.network.layers import Layer, Layers
from repairability.prices import Prices
from repairability.rules import RULES
from repairability.solvers import SOLVERS, Problem

ENDS = np.array([0.0, 1.0])


def layers_of(shapes: dict[str, tuple[int, ...]]) -> Layers:
    draw = torch.Generator().manual_seed(0)
    kinds = {2: "linear", 4: "conv2d"}
    layers = [Layer(name, kinds[len(shape)], torch.randn(shape, generator=draw)) for name, shape in shapes.items()]
    return Layers(layers, sum(layer.total for layer in layers))


def linear(**full: float) -> Prices:
    return Prices("work", dict.fromkeys(full, ENDS), {name: np.array([x, 0.0]) for name, x in full.items()})


def test_a_price_lies_on_a_line_between_its_points() -> None:
    prices = Prices("ms", {"a": np.array([0.0, 0.5, 1.0])}, {"a": np.array([4.0, 4.0, 1.0])}, fixed=2.0)
    assert float(prices.at("a", 0.25)) == 4.0
    assert float(prices.at("a", 0.75)) == 2.5
    assert prices.full("a") == 4.0
    plan = Allocation({"a": 0.75}, {"a": 8}, 8)
    assert prices.of(plan) == 2.5
    assert prices.saved(plan) == pytest.approx(1 - 2.5 / 4)


@pytest.mark.parametrize(
    ("grid", "values", "words"),
    [
        ([0.1, 1.0], [1.0, 0.0], "rise from 0"),
        ([0.0, 0.0], [1.0, 0.0], "rise from 0"),
        ([], [], "rise from 0"),
        ([0.0, 2.0], [1.0, 0.0], "rise from 0"),
        ([0.0, 1.0], [1.0], "one finite price"),
        ([0.0, 1.0], [1.0, -1.0], "one finite price"),
        ([0.0, 1.0], [np.nan, 1.0], "one finite price"),
    ],
)
def test_what_is_no_price_is_refused(grid: list[float], values: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Prices("ms", {"a": np.array(grid)}, {"a": np.array(values)})


def test_a_layer_without_a_price_is_named() -> None:
    with pytest.raises(InputError, match="b"):
        linear(a=1.0).at("b", 0.5)
    with pytest.raises(InputError, match="fixed"):
        Prices("ms", {}, {}, fixed=-1.0)


@pytest.mark.parametrize("rule", ["uniform", "erk", "global", "lamp"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_any_rule_meets_a_budget_of_prices(rule: str, share: float) -> None:
    layers = layers_of({"a": (8, 4, 3, 3), "b": (16, 8, 3, 3), "c": (16, 16, 3, 3)})
    prices = linear(a=1000.0, b=300.0, c=100.0)
    options = {"over": "prunable"} if rule == "global" else {"floor": 0.0} if rule == "erk" else {}
    plan = allocate(layers, sparsity=share, rule=rule, prices=prices, **options)
    assert plan.target is None
    assert share <= prices.saved(plan) < share + 0.02


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_solvers_count_prices_in_place_of_weights(solver: str) -> None:
    """Two layers of equal weights and damage: the one whose pruning saves ten times as much goes further."""
    layers = layers_of({"a": (10, 10), "b": (10, 10)})
    points = {name: np.array([0.0, 0.5, 0.9]) for name in ("a", "b")}
    curves = Curves("rr", points, {name: np.array([0.0, 0.1, 0.3]) for name in ("a", "b")})
    prices = linear(a=1000.0, b=100.0)
    plan = RULES["rr"](layers, 0.8, curves, solver=solver, prices=prices)
    assert plan["a"] == 0.9
    assert plan["b"] == 0.0
    assert prices.saved(plan) >= 0.8


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_a_level_that_is_no_cheaper_is_passed_over(solver: str) -> None:
    """Dense kernels run until a layer is sparse enough: half sparse costs damage and saves nothing."""
    layers = layers_of({"a": (10, 10), "b": (10, 10)})
    points = {name: np.array([0.0, 0.5, 0.9]) for name in ("a", "b")}
    curves = Curves("output", points, {name: np.array([0.0, 0.1, 0.3]) for name in ("a", "b")})
    flat = np.array([10.0, 10.0, 2.0])
    prices = Prices("ms", points, {"a": flat, "b": flat})
    plan = RULES["output"](layers, 0.4, curves, solver=solver, prices=prices)
    assert sorted(plan.sparsities.values()) == [0.0, 0.9]


def test_what_no_grid_saves_is_refused_with_what_it_could() -> None:
    layers = layers_of({"a": (10, 10)})
    curves = Curves("rr", {"a": np.array([0.0, 0.5])}, {"a": np.array([0.0, 0.1])})
    with pytest.raises(BudgetError, match=r"a saving of 80\.00 %.*0\.00 % to 50\.00 %"):
        allocate(layers, sparsity=0.8, rule="rr", curves=curves, prices=linear(a=1.0))
    still = Prices("ms", {"a": ENDS}, {"a": np.array([1.0, 0.9])})
    with pytest.raises(BudgetError, match="cannot save"):
        allocate(layers, sparsity=0.8, rule="uniform", prices=still)


def test_the_problem_of_weights_is_as_before() -> None:
    problem = Problem([np.array([0.0, 0.5])], [np.array([0.0, 1.0])], [10], 0.5)
    assert problem.saved == [[0, 5]]
    assert problem.budget == 5
    assert problem.whole == 10
