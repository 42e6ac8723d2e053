from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import reference
from conftest import torchvision_model
from networks import small_net
from repairability import (
    Allocation,
    BudgetError,
    Curves,
    Diagnosis,
    InputError,
    Layer,
    Layers,
    allocate,
    prunable_layers,
)
from repairability.allocation import pruned_count, target_count
from repairability.rules import RULES, get_rule
from repairability.rules.erk import erk_raw, erk_scale
from repairability.rules.lamp import lamp_scores
from repairability.rules.measured import rr

Paper = Callable[[str], list[dict[str, str]]]
DATA_FREE = ("uniform", "global", "erk", "lamp")


# --- facts of the paper, to the printed digit ---------------------------------------------------------------------


def test_erk_column_of_the_layerwise_table(resnet18: nn.Module, paper: Paper) -> None:
    plan = allocate(resnet18, sparsity=0.95, rule="erk")
    assert {name: f"{s:.3f}" for name, s in plan.items()} == {
        row["Layer"]: row["ERK sparsity"] for row in paper("layerwise_delta")
    }


def test_uncapped_erk_densities(resnet18: nn.Module, paper: Paper) -> None:
    layers = prunable_layers(resnet18)
    scale = erk_scale([erk_raw(x.shape) for x in layers], [x.total for x in layers], 0.95)
    for row in paper("erk_cap"):
        assert f"{scale * erk_raw(layers[row['Layer']].shape):.3f}" == row["Uncapped density"]


def test_projection_forced_ablation(resnet18: nn.Module, paper: Paper) -> None:
    layers = prunable_layers(resnet18)
    regular = [x.name for x in layers if not x.projection]
    for row in paper("projection_forced"):
        pinned = float(row["Proj. sp."].rstrip("%")) / 100
        plan = allocate(layers, sparsity=0.95, rule="forced", pinned={"*downsample*": pinned}, rest="erk")
        assert all(plan[x.name] == pinned for x in layers if x.projection)
        achieved = sum(plan.pruned(name) for name in regular) / sum(plan.totals[name] for name in regular)
        assert f"{100 * achieved:.2f}%" == row["Reg. conv sp."]


@pytest.mark.usefixtures("quiet")  # of VGG's parameters these are a tenth
@pytest.mark.parametrize(("model", "table"), [("resnet34", "resnet34"), ("vgg16_bn", "vgg")])
def test_achieved_global_sparsities(model: str, table: str, paper: Paper) -> None:
    layers = prunable_layers(torchvision_model(model), types=("conv",), skip=("@first",))
    rows = {row["Target"]: row for row in paper(f"{table}_actual_sparsity_full")}
    for target, row in rows.items():
        for rule in DATA_FREE:
            plan = allocate(layers, sparsity=float(target.rstrip("%")) / 100, rule=rule)
            column = {"uniform": "Uniform", "global": "Global", "erk": "ERK", "lamp": "LAMP"}[rule]
            assert f"{100 * plan.global_sparsity:.2f}" == row[column], (target, rule)


def test_the_grids_top_on_resnet18(resnet18: nn.Module) -> None:
    assert f"{100 * allocate(resnet18, sparsity=0.975, rule='uniform').global_sparsity:.2f}" == "97.42"
    assert f"{100 * allocate(resnet18, sparsity=0.975, rule='erk').global_sparsity:.2f}" == "97.42"


def test_cap_and_floor_bite_together(resnet18: nn.Module) -> None:
    """From about 95.6 % the wide layers sit on the floor; at first a projection is at the cap too (at 96.5 % only
    clipping in the wrong order would leave it there).
    """
    layers = prunable_layers(resnet18)
    for sparsity in (0.956, 0.96, 0.965, 0.97, 0.974):
        plan = allocate(layers, sparsity=sparsity, rule="erk")
        expected = reference.erk_densities([x.shape for x in layers], sparsity, 1.0, 0.025)
        np.testing.assert_allclose([1 - s for s in plan.values()], expected, atol=1e-9)
        assert plan["layer4.1.conv2"] == pytest.approx(0.975)
        assert (plan["layer2.0.downsample.0"] == 0) == (sparsity < 0.963)
        assert abs(plan.pruned_total - target_count(layers.totals.values(), sparsity)) <= len(layers) / 2


# --- properties ---------------------------------------------------------------------------------------------------


def layers_of(weights: list[list[float]], n_all: int | None = None) -> Layers:
    made = [
        Layer(f"layer{i}", "conv2d", nn.Parameter(torch.tensor(w, dtype=torch.float64).view(len(w), 1, 1, 1)))
        for i, w in enumerate(weights)
    ]
    return Layers(made, sum(map(len, weights)) if n_all is None else n_all)


integers = st.integers(-4, 4).map(float)  # heavily tied, and sums of squares are exact
networks = st.lists(st.lists(integers, min_size=1, max_size=25), min_size=1, max_size=5)


@given(networks, st.floats(0, 1))
def test_lamp_counts_exactly_and_agrees_with_the_reference(weights: list[list[float]], sparsity: float) -> None:
    plan = allocate(layers_of(weights), sparsity=sparsity, rule="lamp")
    count = target_count(map(len, weights), sparsity)
    assert plan.pruned_total == count
    assert [plan.pruned(x) for x in plan] == reference.lamp_counts(weights, count)


@given(networks, st.floats(0, 1), st.integers(0, 30))
def test_global_counts_exactly_and_agrees_with_the_reference(
    weights: list[list[float]], sparsity: float, dense: int
) -> None:
    total = sum(map(len, weights))
    layers = layers_of(weights, total + dense)
    plan = allocate(layers, sparsity=sparsity, rule="global", over="prunable")
    assert [plan.pruned(x) for x in plan] == reference.global_counts(weights, target_count(map(len, weights), sparsity))
    count = pruned_count(total + dense, sparsity)
    if count <= total:
        plan = allocate(layers, sparsity=sparsity, rule="global")
        assert plan.pruned_total == count
        assert [plan.pruned(x) for x in plan] == reference.global_counts(weights, count)
    else:
        with pytest.raises(BudgetError, match="only .* are prunable"):
            allocate(layers, sparsity=sparsity, rule="global")


def test_lamp_and_global_agree_with_the_reference_on_real_shapes() -> None:
    layers = prunable_layers(small_net())
    weights = [x.weight.detach().flatten().double().tolist() for x in layers]
    for sparsity in (0.3, 0.9, 0.97):
        count = target_count(layers.totals.values(), sparsity)
        plan = allocate(layers, sparsity=sparsity, rule="lamp")
        assert [plan.pruned(x) for x in plan] == reference.lamp_counts(weights, count)
        plan = allocate(layers, sparsity=sparsity, rule="global", over="prunable")
        assert [plan.pruned(x) for x in plan] == reference.global_counts(weights, count)


@given(st.lists(integers, min_size=1, max_size=40))
def test_lamp_scores_never_fall(weights: list[float]) -> None:
    scores = lamp_scores(np.abs(np.array(weights)))
    assert (np.diff(scores) >= 0).all()
    assert scores[-1] == (1 if any(weights) else 0)


shapes = st.lists(st.tuples(*[st.integers(1, 40)] * 2, *[st.integers(1, 5)] * 2), min_size=1, max_size=8)


def shaped(sizes: list[tuple[int, ...]]) -> Layers:
    made = [Layer(f"l{i}", "conv2d", nn.Parameter(torch.zeros(s, device="meta"))) for i, s in enumerate(sizes)]
    return Layers(made, sum(x.total for x in made))


@given(shapes, st.floats(0, 1), st.sampled_from([0.0, 0.025, 0.2]), st.sampled_from([1.0, 0.6]))
def test_erk_meets_its_budget_and_the_reference(
    sizes: list[tuple[int, ...]], sparsity: float, floor: float, cap: float
) -> None:
    layers = shaped(sizes)
    if not 1 - cap + 1e-6 <= sparsity <= 1 - floor - 1e-6:
        return
    plan = allocate(layers, sparsity=sparsity, rule="erk", floor=floor, cap=cap)
    assert abs(plan.pruned_total - sparsity * layers.total) <= len(layers) / 2 + 1e-6
    np.testing.assert_allclose(
        [1 - s for s in plan.values()], reference.erk_densities(sizes, sparsity, cap, floor), atol=1e-7
    )


@given(shapes, st.floats(0, 1))
def test_uniform_and_forced_are_within_half_a_weight_per_layer(sizes: list[tuple[int, ...]], sparsity: float) -> None:
    layers = shaped(sizes)
    plan = allocate(layers, sparsity=sparsity, rule="uniform")
    assert abs(plan.pruned_total - sparsity * layers.total) <= len(layers) / 2
    if len(layers) > 1:
        plan = allocate(layers, sparsity=sparsity, rule="forced", pinned={"l0": sparsity}, rest="uniform")
        budget = target_count(layers.totals.values(), sparsity)
        assert abs(plan.pruned_total - budget) <= len(layers) / 2


def curves_for(layers: Layers, seed: int, measure: str = "rr") -> Curves:
    random = np.random.default_rng(seed)
    grid = [0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975]
    return Curves.on_grid(measure, grid, {x: np.sort(random.random(7)) for x in layers.names})


RENAMED: list[tuple[str, dict[str, Any]]] = [
    ("uniform", {}),
    ("global", {}),
    ("erk", {}),
    ("lamp", {}),
    ("rr", {"solver": "greedy"}),
    ("rr", {"solver": "exact"}),
    ("forced", {"pinned": {"?0": 0.8}, "rest": "lamp"}),
]


@pytest.mark.parametrize(("rule", "options"), RENAMED)
def test_renaming_layers_only_renames(rule: str, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    weights = [nn.Parameter(torch.randn(n, 3, 3, 3)) for n in (4, 8, 16)]
    first, second = (
        Layers([Layer(f"{letter}{i}", "conv2d", w) for i, w in enumerate(weights)], 760) for letter in "az"
    )
    a = allocate(first, sparsity=0.9, rule=rule, curves=curves_for(first, 0), **options)
    z = allocate(second, sparsity=0.9, rule=rule, curves=curves_for(second, 0), **options)
    assert list(a.values()) == list(z.values())
    assert [x.replace("a", "z") for x in a] == list(z)


def test_rules_on_curves_use_the_grid_and_meet_the_budget(resnet18: nn.Module) -> None:
    layers = prunable_layers(resnet18)
    curves = curves_for(layers, 3)
    greedy = allocate(layers, sparsity=0.95, rule="rr", curves=curves)
    exact = allocate(layers, sparsity=0.95, rule="rr", curves=curves, solver="exact")
    budget = target_count(layers.totals.values(), 0.95)
    assert greedy.pruned_total >= budget
    assert exact.pruned_total >= budget
    assert set(greedy.values()) <= set(curves.grid["layer1.0.conv1"].tolist())

    def cost(plan: Allocation) -> float:
        return sum(float(curves[x][np.flatnonzero(curves.grid[x] == s)[0]]) for x, s in plan.items())

    assert cost(exact) <= cost(greedy)


def test_a_diagnosis_offers_its_curves_by_name(small_net: nn.Module) -> None:
    layers = prunable_layers(small_net)

    raw, residual, rr = (curves_for(layers, seed, name) for seed, name in enumerate(("raw", "residual", "rr"), 1))
    diagnosis = Diagnosis(raw, residual, rr, repair="cr", observe="layer", images=1, fingerprint="")
    plan = allocate(layers, sparsity=0.9, rule="raw", curves=diagnosis)
    assert plan == allocate(layers, sparsity=0.9, rule="raw", curves=raw)
    assert plan.rule == "raw"
    with pytest.raises(InputError, match="'residual' needs Curves.*not dict"):
        allocate(layers, sparsity=0.9, rule="residual", curves={})
    with pytest.raises(InputError, match="curves of 'rr' are needed, and those of 'raw' were given"):
        allocate(layers, sparsity=0.9, rule="rr", curves=raw)


def test_a_callable_is_a_rule(small_net: nn.Module) -> None:
    def halves(layers: Layers, sparsity: float, curves: object = None) -> Allocation:
        return Allocation(dict.fromkeys(layers.names, 0.5), layers.totals, layers.n_all, "halves", sparsity)

    assert allocate(small_net, sparsity=0.5, rule=halves).sparsity == 0.5
    plan = allocate(small_net, sparsity=0.5, rule="forced", pinned={"2": 0.5}, rest=halves)
    assert plan.rule == "forced(halves)"


def test_a_partial_of_a_rule_is_a_rule(small_net: nn.Module) -> None:
    """Of the registry's rule it knows what that needs; of a bare function, that curves are handed on."""
    layers = prunable_layers(small_net)
    curves = curves_for(layers, 2, "rr")
    exact = allocate(layers, sparsity=0.9, rule="rr", curves=curves, solver="exact")
    for rule in (functools.partial(RULES["rr"], solver="exact"), functools.partial(rr, solver="exact")):
        assert allocate(layers, sparsity=0.9, rule=rule, curves=curves) == exact
    assert get_rule(functools.partial(RULES["rr"], solver="exact")).works_on_curves({})
    assert get_rule(functools.partial(RULES["forced"], rest="rr")).works_on_curves({})
    assert not get_rule(functools.partial(RULES["erk"], floor=0.0)).works_on_curves({})


def test_what_a_rule_takes_and_needs_is_declared() -> None:
    assert RULES["erk"].takes({}) == ("cap", "floor")
    assert RULES["forced"].takes({"rest": "rr"}) == ("pinned", "rest", "solver")
    assert RULES["forced"].takes({}) == ("pinned", "rest", "cap", "floor")
    assert [name for name, rule in RULES.items() if rule.works_on_curves({})] == ["raw", "residual", "rr", "output"]
    assert RULES["forced"].works_on_curves({"rest": "residual"})


def test_an_allocation_in_place_of_a_rule(small_net: nn.Module) -> None:
    plan = allocate(small_net, sparsity=0.8, rule="lamp")
    assert allocate(small_net, sparsity=0.8, rule=plan) is plan
    with pytest.raises(InputError, match="made for other layers"):
        allocate(prunable_layers(small_net, skip=()), sparsity=0.8, rule=plan)


def test_allocation_changes_nothing(small_net: nn.Module) -> None:
    before = {key: value.clone() for key, value in small_net.state_dict().items()}
    state = torch.get_rng_state()
    for rule in DATA_FREE:
        allocate(small_net, sparsity=0.8, rule=rule)
    assert all(torch.equal(value, before[key]) for key, value in small_net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


# --- what cannot be done ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("sparsity", [1.2, -0.1, math.nan, math.inf])
def test_impossible_sparsities(rule: str, sparsity: float, small_net: nn.Module) -> None:
    with pytest.raises(InputError, match="sparsity must be between 0 and 1"):
        allocate(small_net, sparsity=sparsity, rule=rule)


def test_an_unknown_rule_and_option(small_net: nn.Module) -> None:
    with pytest.raises(InputError, match=r"unknown rule 'lmap'; did you mean lamp\?"):
        allocate(small_net, sparsity=0.5, rule="lmap")
    with pytest.raises(InputError, match="rule 'erk' takes no option 'flor'; it takes: cap, floor"):
        allocate(small_net, sparsity=0.5, rule="erk", flor=0.1)


@pytest.mark.parametrize("rule", ["raw", "residual", "rr"])
def test_rules_on_curves_ask_for_a_diagnosis(rule: str, small_net: nn.Module) -> None:
    with pytest.raises(InputError, match=f"rule '{rule}' needs measured curves: .*diagnose"):
        allocate(small_net, sparsity=0.9, rule=rule)


def test_curves_that_miss_a_layer(small_net: nn.Module) -> None:
    curves = Curves.on_grid("rr", [0.7, 0.9], {"2": [0.1, 0.2]})
    with pytest.raises(InputError, match="the rr curves do not cover 4"):
        allocate(small_net, sparsity=0.8, rule="rr", curves=curves)


def test_infeasible_budgets_say_what_is_reachable(small_net: nn.Module) -> None:
    with pytest.raises(BudgetError, match=r"ERK cannot reach sparsity 99.00 %.*0.00 % to 97.50 %; lower the floor"):
        allocate(small_net, sparsity=0.99, rule="erk")
    with pytest.raises(BudgetError, match=r"reaches 50.00 % to 97.50 %; raise the cap"):
        allocate(small_net, sparsity=0.2, rule="erk", cap=0.5)
    assert allocate(small_net, sparsity=0.99, rule="erk", floor=0.0).sparsity == pytest.approx(0.99, abs=1e-3)
    with pytest.raises(InputError, match="floor must not exceed cap"):
        allocate(small_net, sparsity=0.5, rule="erk", floor=0.5, cap=0.2)
    with pytest.raises(InputError, match="over must be one of all, prunable, not 'some'"):
        allocate(small_net, sparsity=0.5, rule="global", over="some")


def test_infeasible_pins(small_net: nn.Module) -> None:
    def force(sparsity: float, **pinned: float) -> Allocation:
        return allocate(small_net, sparsity=sparsity, rule="forced", pinned=pinned, rest="uniform")

    with pytest.raises(BudgetError, match=r"50.00 % is not reachable .*; reachable: 81.82 % to 100.00 %"):
        force(0.5, **{"2": 1.0})
    with pytest.raises(BudgetError, match=r"reachable: 0.00 % to 18.18 %"):
        force(0.5, **{"2": 0.0})
    with pytest.raises(BudgetError, match=r"reachable: 90.00 %|reachable: 89.99 % only: every layer is pinned"):
        force(0.5, **{"*": 0.9})
    assert force(0.9, **{"*": 0.9}).sparsity == pytest.approx(0.9, abs=1e-3)
    with pytest.raises(InputError, match="layer '2' is pinned twice, to 0.9 and to 0.5"):
        force(0.9, **{"*": 0.9, "2": 0.5})
    with pytest.raises(InputError, match="unknown layer or pattern 'downsample'"):
        force(0.9, downsample=0.9)
    with pytest.raises(InputError, match="needs pinned layers"):
        force(0.9)


def test_zero_and_full_sparsity(small_net: nn.Module) -> None:
    for rule in DATA_FREE:
        assert allocate(small_net, sparsity=0.0, rule=rule).pruned_total == 0
    for rule in ("uniform", "lamp"):
        assert allocate(small_net, sparsity=1.0, rule=rule).sparsity == 1


@settings(max_examples=20)
@given(networks)
def test_all_zero_weights_still_count(weights: list[list[float]]) -> None:
    layers = layers_of([[0.0] * len(w) for w in weights])
    for rule in ("global", "lamp"):
        assert allocate(layers, sparsity=0.6, rule=rule).pruned_total in (
            target_count(map(len, weights), 0.6),
            pruned_count(layers.n_all, 0.6),
        )
