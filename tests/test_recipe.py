from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import repairability as rp
from repairability import InputError, PruneConfig, Recipe, get_recipe, prune, prune_many
from repairability.allocation import Allocation
from repairability.network.layers import Layers
from repairability.pruning.recipe import distinct
from repairability.rules import get_rule

IMAGES = torch.randn(200, 3, 9, 9, generator=torch.Generator().manual_seed(2))
CONFIG = PruneConfig(count=40)
STRONG, PAPER = rp.RECIPES["strong"], rp.RECIPES["paper"]
MINE = Recipe("residual", "magnitude", "cr", {"solver": "exact"}, name="mine")

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return rp.create_model("networks:Residual")


def halves(layers: Layers, sparsity: float, curves: object = None) -> Allocation:
    return Allocation(dict.fromkeys(layers.names, 0.5), layers.totals, layers.n_all, "halves", sparsity)


def same_weights(one: rp.PruneResult, other: rp.PruneResult) -> bool:
    theirs = other.model.state_dict()
    return all(torch.equal(value, theirs[key]) for key, value in one.model.state_dict().items())


def test_the_registry() -> None:
    assert all(recipe.name == name for name, recipe in rp.RECIPES.items())
    assert Recipe("rr", "magnitude", "cr+bn") == PAPER
    (rule, options), score, repair = rp.RECIPES["fast"].parts()
    assert repair.fit is None  # no least squares
    assert not score.solves
    assert not rule.works_on_curves(options)
    assert get_recipe("paper") is PAPER
    assert get_recipe(MINE) is MINE


def test_names_nobody_knows() -> None:
    with pytest.raises(InputError, match="unknown recipe 'weak'; known: fast, paper, strong"):
        get_recipe("weak")
    with pytest.raises(InputError, match="unknown recipe 'stron'; did you mean strong"):
        get_recipe("stron")
    with pytest.raises(InputError, match="a recipe is one of strong, fast, paper or a Recipe, not tuple"):
        get_recipe(("rr", "magnitude", "cr+bn"))  # type: ignore[arg-type]
    for wrong in (("er", "magnitude", "cr"), ("erk", "magnitud", "cr"), ("erk", "magnitude", "c")):
        with pytest.raises(InputError, match="did you mean|unknown repair 'c'"):
            Recipe(*wrong)


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ({}, "mine"),
        ({"repair": "bn"}, "mine with repair bn"),
        ({"score": "activation", "repair": "bn"}, "mine with score activation, repair bn"),
        ({"rule": "erk"}, "mine with rule erk"),
        ({"rule": "erk", "options": {"floor": 0.1}}, "mine with rule erk floor=0.1"),
        ({"rule": "residual"}, "mine with rule residual"),  # by itself: without mine's options
        ({"rule": "residual", "options": {"solver": "exact"}}, "mine"),
        ({"options": {"solver": "greedy"}}, "mine with rule residual solver=greedy"),
        ({"rule": halves}, "mine with rule halves"),
        ({"rule": "uniform", "score": "activation", "repair": "none"}, "uniform, activation, none"),  # nothing is left
        ({"rule": "lamp", "repair": "cr+bn"}, "mine with rule lamp, repair cr+bn"),
    ],
)
def test_replaced_parts_stand_in_the_name(parts: dict[str, Any], name: str) -> None:
    made = MINE.with_parts(**parts)
    assert made.name == str(made) == name
    for part, given in parts.items():
        assert getattr(made, part) == given
    for part in {"score", "repair"} - parts.keys():
        assert getattr(made, part) == getattr(MINE, part)


def test_options_belong_to_a_rule() -> None:
    assert MINE.with_parts(rule="erk").options == {}
    assert MINE.with_parts(rule="erk", options={"floor": 0.1}).options == {"floor": 0.1}
    assert MINE.with_parts(repair="bn").options == {"solver": "exact"}
    assert MINE.with_parts(options={"more": 1}).options == {"solver": "exact", "more": 1}
    assert MINE.options == {"solver": "exact"}


def test_a_recipe_of_replaced_parts_is_still_called_by_the_first() -> None:
    twice = MINE.with_parts(rule="erk").with_parts(repair="bn").with_parts(rule="lamp")
    assert twice.name == "mine with rule lamp, repair bn"
    assert twice.with_parts(rule="residual", options={"solver": "exact"}, repair="cr").name == "mine"


def test_without_a_name_the_parts_are_the_name() -> None:
    assert Recipe("erk", "magnitude", "cr", {"floor": 0.0}).name == "erk floor=0.0, magnitude, cr"
    assert Recipe("erk", "magnitude", "cr").with_parts(repair="bn").name == "erk, magnitude, bn"
    assert Recipe(get_rule("rr"), "magnitude", "cr+bn").name == "paper"  # of these parts
    assert replace(MINE, name="").name == "residual solver=exact, magnitude, cr"


def test_distinct() -> None:
    again = Recipe("residual", "magnitude", "cr", {"solver": "exact"})
    assert distinct(MINE, PAPER, again, STRONG.with_parts(score="magnitude")) == (
        MINE,
        PAPER,
        STRONG.with_parts(score="magnitude"),
    )


def test_prune_is_strong_unless_told_otherwise(model: nn.Module) -> None:
    result = prune(model, IMAGES, sparsity=0.8, config=CONFIG)
    (rule, options), score, repair = STRONG.parts()
    assert result.recipe == "strong"
    assert (result.allocation.rule, result.score, result.repair) == (rule.name, score.name, repair.name)
    parts = {"rule": STRONG.rule, "score": STRONG.score, "repair": STRONG.repair}
    said = prune(model, IMAGES, sparsity=0.8, **parts, config=replace(CONFIG, options=options))
    assert said.recipe == "strong"
    assert same_weights(result, said)


@pytest.mark.parametrize("name", ["paper", "fast"])
def test_a_recipe_is_its_parts(name: str, model: nn.Module) -> None:
    known = rp.RECIPES[name]
    result = prune(model, IMAGES, sparsity=0.8, recipe=name, config=CONFIG)
    config = replace(CONFIG, options=known.options)
    parts = {"rule": known.rule, "score": known.score, "repair": known.repair}
    assert result.recipe == name
    assert same_weights(result, prune(model, IMAGES, sparsity=0.8, **parts, config=config))


def test_single_parts_are_replaced(model: nn.Module) -> None:
    result = prune(model, IMAGES, sparsity=0.8, recipe=MINE, repair="none", config=CONFIG)
    assert (result.allocation.rule, result.score, result.repair) == ("residual", "magnitude", "none")
    assert result.recipe == "mine with repair none"
    plan = rp.allocate(model, sparsity=0.8, rule="residual", curves=result.diagnosis, solver="exact")
    assert result.allocation == plan  # the recipe's own options
    erk = prune(model, IMAGES, sparsity=0.8, recipe=MINE, rule="erk", config=CONFIG)  # takes no option `solver`
    assert erk.recipe == "mine with rule erk"
    greedy = prune(model, IMAGES, sparsity=0.8, recipe=MINE, config=replace(CONFIG, options={"solver": "greedy"}))
    assert greedy.recipe == "mine with rule residual solver=greedy"


def test_an_allocation_in_a_recipe_says_the_sparsity(model: nn.Module) -> None:
    plan = rp.allocate(model, sparsity=0.8, rule="lamp")
    one = prune(model, IMAGES, recipe=Recipe(plan, "magnitude", "cr", name="planned"), config=CONFIG)
    assert one.allocation is plan
    assert one.recipe == "planned"
    assert prune(model, IMAGES, recipe="paper", rule=plan, config=CONFIG).recipe == "paper with rule lamp"


def test_prune_many_by_the_rule_of_the_recipe(model: nn.Module) -> None:
    low, high = prune_many(model, IMAGES, sparsities=[0.6, 0.8], recipe=MINE, config=CONFIG)
    assert [x.recipe for x in (low, high)] == ["mine", "mine"]
    exact = replace(CONFIG, options={"solver": "exact"})
    said = prune_many(
        model, IMAGES, sparsities=[0.6, 0.8], rules=["residual"], score="magnitude", repair="cr", config=exact
    )
    assert all(same_weights(ours, theirs) for ours, theirs in zip((low, high), said, strict=True))


def test_prune_many_names_each_rule(model: nn.Module) -> None:
    config = replace(CONFIG, options={"floor": 0.1})
    found = prune_many(model, IMAGES, sparsities=[0.6], recipe=MINE, rules=["residual", "erk"], config=config)
    assert [x.recipe for x in found] == ["mine with rule residual", "mine with rule erk floor=0.1"]
    found = prune_many(model, IMAGES, sparsities=[0.6], recipe="fast", rules=["lamp", "uniform"], config=CONFIG)
    assert [x.recipe for x in found] == ["fast", "fast with rule uniform"]


def test_a_result_says_what_it_was_and_what_it_took(model: nn.Module) -> None:
    result = prune(model, IMAGES, sparsity=0.8, recipe="fast", repair="cr", config=CONFIG)
    assert result.seconds == sum(result.timings.values()) > 0
    known = {"recipe": "fast with repair cr", "seconds": result.seconds, "memory_mb": result.memory_mb}
    assert {name: result.to_dict()[name] for name in known} == known
    assert f"recipe fast with repair cr: {result.seconds:.2f} s (" in str(result)
    assert "memory grown by 12 MB at its peak" in str(replace(result, memory_mb=12.3))
    assert "memory" not in str(replace(result, memory_mb=None))


def test_a_wrong_recipe_is_refused_before_anything_is_done(model: nn.Module) -> None:
    with pytest.raises(InputError, match="unknown recipe 'best'"):
        prune(model, IMAGES, sparsity=0.8, recipe="best")
    with pytest.raises(InputError, match="unknown rule 'er'"):
        prune_many(model, IMAGES, sparsities=[0.8], rules=["er"])
    with pytest.raises(InputError, match="rule 'lamp' takes no option 'solver'"):
        prune(model, IMAGES, sparsity=0.8, recipe="fast", config=replace(CONFIG, options={"solver": "exact"}))
