"""pruning/budget: weights, multiply-adds or time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from networks import small_net
from repairability import BudgetError, InputError, PruneConfig, allocate, prunable_layers, prune
from repairability.deploy import pricing
from repairability.prices import Prices
from repairability.pruning import budget as module
from repairability.pruning.budget import Budget

IMAGES = torch.randn(160, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "either how sparse"),
        ({"share": 0.5, "speedup": 2.0}, "either how sparse"),
        ({"share": 0.5, "kind": "flops"}, "flops"),
        ({"share": 1.5}, "between 0 and 1"),
        ({"speedup": 1.0}, "above 1"),
        ({"speedup": float("nan")}, "above 1"),
        ({"speedup": 2.0, "kind": "macs"}, "budget of its own"),
    ],
)
def test_what_is_no_budget_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Budget(**given)


@pytest.mark.parametrize("recipe", ["fast", "paper"])
def test_a_budget_of_multiply_adds_is_met(recipe: str) -> None:
    torch.manual_seed(0)
    model = small_net().eval()
    result = prune(model, IMAGES, sparsity=0.6, budget="macs", recipe=recipe)
    assert result.work is not None
    assert result.work >= 0.6 - 1e-9
    assert result.allocation.target is None
    assert "of the multiply-adds" in str(result)
    assert result.to_dict()["work"] == result.work


def test_work_is_told_beside_weights() -> None:
    torch.manual_seed(0)
    result = prune(small_net().eval(), IMAGES, sparsity=0.6, rule="uniform", recipe="fast")
    assert result.work == pytest.approx(result.sparsity, abs=0.02)  # uniform: the same share of everything


def test_a_rule_by_levels_that_prunes_more_than_was_asked_for_says_so() -> None:
    coarse = PruneConfig(grid=(0.0, 0.95))
    result = prune(small_net(), IMAGES, sparsity=0.7, recipe="paper", config=coarse)
    assert result.sparsity > 0.71
    (note,) = (x for x in result.notes if "asked for" in x)
    assert note.startswith(f"{result.sparsity:.2%}".replace("%", " %") + " where 70.00 % was asked for: rule 'rr'")
    for recipe in ("fast", "strong"):
        assert not any("asked for" in x for x in prune(small_net(), IMAGES, sparsity=0.7, recipe=recipe).notes)


def test_ready_allocations_and_auto_take_no_other_budget() -> None:
    torch.manual_seed(0)
    model = small_net().eval()
    plan = allocate(model, sparsity=0.5)
    with pytest.raises(InputError, match="says already"):
        prune(model, IMAGES, rule=plan, speedup=2.0)
    with pytest.raises(InputError, match="auto"):
        prune(model, IMAGES, sparsity=0.5, rule="auto", budget="macs")
    with pytest.raises(InputError, match="how fast"):
        prune(model, IMAGES)


def test_a_speed_is_corrected_by_what_the_network_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine where the network takes 20 % more than its layers' sum, by a clock of our own."""
    torch.manual_seed(0)
    model = small_net().eval()

    def clock(model: Any, layers: Any, example: Any) -> Prices:
        prices = pricing.multiply_adds(model, layers, IMAGES[:2])
        return Prices("ms", prices.grid, prices.values, fixed=0.1 * sum(map(prices.full, layers.names)))

    def taken(model: Any, allocation: Any, example: Any, threads: Any) -> float:
        prices = clock(model, prunable_layers(model, batch=IMAGES[:2]), example)
        return 1.2 * (prices.of(allocation) + prices.fixed)

    def dense(model: Any, example: Any, threads: Any) -> float:
        layers = prunable_layers(model, batch=IMAGES[:2])
        prices = clock(model, layers, example)
        return 1.2 * (sum(map(prices.full, layers.names)) + prices.fixed)

    monkeypatch.setattr(module, "milliseconds", clock)
    monkeypatch.setattr(module, "time_of", taken)
    monkeypatch.setattr(module, "dense_time", dense)
    result = prune(model, IMAGES, speedup=2.0, recipe="fast")
    assert dense(model, None, None) / taken(model, result.allocation, None, None) == pytest.approx(2.0, rel=0.03)
    with pytest.raises(BudgetError, match="ask for less"):
        prune(model, IMAGES, speedup=50.0, recipe="fast")
