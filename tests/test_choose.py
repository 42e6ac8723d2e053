from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from repairability import CalibrationSet, InputError, PruneConfig, Recipe, agreement, create_model, prune, prune_best
from repairability.pruning import RECIPES, choose
from repairability.pruning.choose import BEST, TRIED_RULES, clearly_less
from repairability.pruning.plan import Measurement
from repairability.pruning.result import PruneResult, Trial
from test_sacred import complete_state, same, users_model

IMAGES = torch.randn(300, 3, 9, 9, generator=torch.Generator().manual_seed(2))
CONFIG = PruneConfig(count=40)


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def model() -> nn.Module:
    return create_model("networks:Residual", seed=3)


def test_auto_takes_the_rule_that_agrees_most_on_images_held_out(model: nn.Module) -> None:
    found = prune(model, IMAGES, sparsity=0.8, rule="auto", score="magnitude", repair="cr+bn-short", config=CONFIG)
    assert [trial.rule for trial in found.trials] == list(TRIED_RULES)
    least = min((trial for trial in found.trials if trial.kl is not None), key=lambda trial: trial.kl or 0.0)
    assert found.allocation.rule == least.rule
    assert [trial for trial in found.trials if trial.chosen] == [least]
    held = (300 - 40) // 3
    assert agreement(model, found.model, [IMAGES[-held:]]).kl == pytest.approx(least.kl, rel=1e-4)
    assert found.fingerprint == CalibrationSet(IMAGES[:-held], 40).fingerprint  # nothing was calibrated on them
    again = prune(model, IMAGES, sparsity=0.8, rule="auto", score="magnitude", repair="cr+bn-short", config=CONFIG)
    assert [(t.rule, t.kl) for t in again.trials] == [(t.rule, t.kl) for t in found.trials]


def test_rules_that_cannot_are_left_out_and_named(model: nn.Module) -> None:
    """ERK's floor ends at 97.5 %."""
    found = prune(model, IMAGES, sparsity=0.985, rule="auto", score="magnitude", repair="cr+bn-short", config=CONFIG)
    assert found.trials[0].kl is None
    assert "97.5" in found.trials[0].problem
    assert found.allocation.rule != "erk"
    assert found.trials[0].problem in str(found)


def test_best_says_what_it_tried(model: nn.Module) -> None:
    found = prune_best(model, IMAGES, sparsity=0.7, config=CONFIG)
    assert [(t.rule, t.score, t.repair) for t in found.trials] == [(c.rule, c.score, c.repair) for c in BEST]
    (chosen,) = [trial for trial in found.trials if trial.chosen]
    assert (chosen.rule, chosen.score, chosen.repair) == (found.allocation.rule, found.score, found.repair)
    least = min((trial for trial in found.trials if trial.kl is not None), key=lambda trial: trial.kl or 0.0)
    assert chosen is least or found.trials.index(chosen) < found.trials.index(least)  # alike: the earlier
    assert found.to_dict()["trials"][0]["score"] == "alternating"
    assert "mean KL" in str(found)


def test_the_table_says_why_a_smaller_kl_was_not_taken(model: nn.Module) -> None:
    found = prune(model, IMAGES, sparsity=0.7, rule="erk", score="magnitude", repair="none", config=CONFIG)
    trials = (
        Trial("a", "s", "r", kl=0.3, chosen=True),
        Trial("b", "s", "r", kl=0.2),
        Trial("c", "s", "r", kl=0.4),
        Trial("d", "s", "r", problem="too sparse"),
    )
    last = [row[-1] for row in replace(found, trials=trials).trials_table().rows]
    assert last == ["chosen", "its lead is within noise", "", "too sparse"]


def test_a_later_candidate_must_be_better_beyond_noise() -> None:
    earlier = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert clearly_less(earlier - 0.5, earlier, 2.0)  # on every image by the same
    assert not clearly_less(earlier, earlier, 0.0)
    by_luck = earlier + torch.tensor([-1.0, 0.9, -1.0, 0.9])  # mean gap -0.05, standard error 0.55
    assert clearly_less(by_luck, earlier, 0.0)
    assert not clearly_less(by_luck, earlier, 2.0)
    broken = torch.tensor([1.0, torch.nan, 1.0, 1.0])
    assert clearly_less(earlier, broken, 2.0)
    assert not clearly_less(broken, earlier, 0.0)


def test_best_begins_nothing_after_its_seconds(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps by 10 s at every look."""
    ticks = itertools.count(step=10.0)
    monkeypatch.setattr(choose, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    recipes = [Recipe(rule, "magnitude", "none") for rule in ("erk", "lamp", "global")]
    found = prune_best(model, IMAGES, sparsity=0.7, candidates=recipes, seconds=45, config=CONFIG)
    assert [trial.kl is None for trial in found.trials] == [False, False, True]
    assert "the 45 seconds are spent" in found.trials[2].problem


def test_candidates_share_one_diagnosis(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that need the same curves measure them once; one conditioned on another repair measures its own."""
    measured = []
    original = Measurement.diagnose

    def counting(self: Measurement, *args: Any) -> Any:
        measured.append((self.repair.name, self.score.name))
        return original(self, *args)

    monkeypatch.setattr(Measurement, "diagnose", counting)
    recipes = [
        Recipe("rr", "magnitude", "cr"),
        Recipe("residual", "activation", "cr"),
        Recipe("lamp", "magnitude", "cr"),
        Recipe("rr", "activation", "reconstruct"),
    ]
    result = prune_best(model, IMAGES, sparsity=0.7, candidates=recipes, config=CONFIG)
    assert measured == [("cr", "magnitude"), ("reconstruct", "activation")]
    assert all(trial.kl is not None for trial in result.trials)


def test_auto_is_a_call_of_best_with_every_rule(model: nn.Module) -> None:
    recipes = [Recipe(rule, "magnitude", "cr") for rule in TRIED_RULES]
    ours = prune_best(model, IMAGES, sparsity=0.7, candidates=recipes, config=CONFIG, doubt=0.0)
    auto = prune(model, IMAGES, sparsity=0.7, rule="auto", score="magnitude", repair="cr", config=CONFIG)
    assert auto.allocation == ours.allocation
    assert [(x.rule, x.kl, x.chosen) for x in auto.trials] == [(x.rule, x.kl, x.chosen) for x in ours.trials]


def test_auto_keeps_score_and_repair_of_the_recipe(model: nn.Module) -> None:
    result = prune(model, IMAGES, sparsity=0.7, recipe="fast", rule="auto", config=CONFIG)
    assert {(trial.score, trial.repair) for trial in result.trials} == {("magnitude", "cr+bn")}
    known = {"lamp": "fast", "rr": "paper"}  # by the parts they have
    rule = result.allocation.rule
    assert result.recipe == known.get(rule, f"fast with rule {rule}")


def test_best_begins_with_the_strong_recipe_and_tries_nothing_twice() -> None:
    strong, fast = RECIPES["strong"], RECIPES["fast"]
    assert BEST[0] is strong
    assert BEST[-1] is fast
    parts = [recipe.parts() for recipe in BEST]
    assert all(x not in parts[:i] for i, x in enumerate(parts))
    assert {(x.score, x.repair) for x in BEST[:-1]} == {(strong.score, strong.repair)}


def test_what_could_not_be_made_is_said(model: nn.Module) -> None:
    recipes = [Recipe("erk", "magnitude", "cr+bn", {"floor": 0.5}), Recipe("lamp", "magnitude", "none")]
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        result = prune_best(model, IMAGES, sparsity=0.9, candidates=recipes, config=CONFIG)
    assert result.allocation.rule == "lamp"
    assert any(
        "the candidate erk, magnitude, cr+bn could not be made: ERK cannot reach" in str(x.message) for x in notices
    )


def test_clear_errors(model: nn.Module) -> None:
    for seconds in (0, -3, math.nan):
        with pytest.raises(InputError, match=f"seconds must be a positive number, not {seconds}"):
            prune_best(model, IMAGES, sparsity=0.7, seconds=seconds)
    with pytest.raises(InputError, match="candidates is empty"):
        prune_best(model, IMAGES, sparsity=0.7, candidates=[])
    with pytest.raises(InputError, match="holds images out: 50 leave 3 beside the 40"):
        prune(model, IMAGES[:50], sparsity=0.7, rule="auto", config=CONFIG)
    with pytest.raises(InputError, match="none of the rules erk, lamp, global, rr, residual takes an option 'pinned'"):
        prune(model, IMAGES, sparsity=0.7, rule="auto", config=PruneConfig(count=40, options={"pinned": {}}))


@pytest.mark.parametrize("verb", [prune_best, functools.partial(prune, recipe="paper", rule="auto")])
def test_the_users_model_is_sacred(verb: Callable[..., PruneResult]) -> None:
    model = users_model()
    before = complete_state(model)
    verb(model, IMAGES, sparsity=0.7, config=CONFIG)
    assert same(complete_state(model), before)


def test_candidates_may_be_names(model: nn.Module) -> None:
    found = prune_best(model, IMAGES, sparsity=0.8, candidates=["fast", RECIPES["paper"]], config=CONFIG)
    assert [trial.rule for trial in found.trials] == ["lamp", "rr"]
    with pytest.raises(InputError, match="unknown recipe 'fats'"):
        prune_best(model, IMAGES, sparsity=0.8, candidates=["fats"], config=CONFIG)
