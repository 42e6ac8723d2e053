from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from repairability import CalibrationSet, InputError, PruneConfig, agreement, create_model, prune
from repairability.pruning import choose as auto
from repairability.pruning.choose import Candidate, clearly_less
from repairability.pruning.result import Trial
from test_sacred import complete_state, same, users_model

IMAGES = torch.randn(300, 3, 9, 9, generator=torch.Generator().manual_seed(2))
CONFIG = PruneConfig(count=40)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def model() -> nn.Module:
    return create_model("networks:Residual", seed=3)


def test_auto_takes_the_rule_that_agrees_most_on_images_held_out(model: nn.Module) -> None:
    found = prune(model, IMAGES, sparsity=0.8, rule="auto", repair="cr+bn-short", config=CONFIG)
    assert [trial.rule for trial in found.trials] == list(auto.RULES)
    least = min((trial for trial in found.trials if trial.kl is not None), key=lambda trial: trial.kl or 0.0)
    assert found.allocation.rule == least.rule
    assert [trial for trial in found.trials if trial.chosen] == [least]
    held = (300 - 40) // 3
    assert agreement(model, found.model, [IMAGES[-held:]]).kl == pytest.approx(least.kl, rel=1e-4)
    assert found.fingerprint == CalibrationSet(IMAGES[:-held], 40).fingerprint  # nothing was calibrated on them
    again = prune(model, IMAGES, sparsity=0.8, rule="auto", repair="cr+bn-short", config=CONFIG)
    assert [(t.rule, t.kl) for t in again.trials] == [(t.rule, t.kl) for t in found.trials]


def test_rules_that_cannot_are_left_out_and_named(model: nn.Module) -> None:
    """ERK's floor ends at 97.5 %."""
    found = prune(model, IMAGES, sparsity=0.985, rule="auto", repair="cr+bn-short", config=CONFIG)
    assert found.trials[0].kl is None
    assert "97.5" in found.trials[0].problem
    assert found.allocation.rule != "erk"
    assert found.trials[0].problem in str(found)


def test_best_says_what_it_tried(model: nn.Module) -> None:
    found = prune(model, IMAGES, sparsity=0.7, best=True, config=CONFIG)
    assert [(t.rule, t.score, t.repair) for t in found.trials] == [(c.rule, c.score, c.repair) for c in auto.BEST]
    (chosen,) = [trial for trial in found.trials if trial.chosen]
    assert (chosen.rule, chosen.score, chosen.repair) == (found.allocation.rule, found.score, found.repair)
    least = min((trial for trial in found.trials if trial.kl is not None), key=lambda trial: trial.kl or 0.0)
    assert chosen is least or found.trials.index(chosen) < found.trials.index(least)  # alike: the earlier
    assert found.to_dict()["trials"][0]["score"] == "second_order"
    assert "mean KL" in str(found)


def test_the_table_says_why_a_smaller_kl_was_not_taken(model: nn.Module) -> None:
    found = prune(model, IMAGES, sparsity=0.7, rule="erk", repair="none", config=CONFIG)
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


def test_best_begins_nothing_after_its_budget(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps by 10 s at every look."""
    ticks = itertools.count(step=10.0)
    monkeypatch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(auto, "BEST", tuple(Candidate(rule, "magnitude", "none") for rule in ("erk", "lamp", "global")))
    found = prune(model, IMAGES, sparsity=0.7, best=True, budget=45, config=CONFIG)
    assert [trial.kl is None for trial in found.trials] == [False, False, True]
    assert "the budget of 45 s is spent" in found.trials[2].problem


def test_clear_errors(model: nn.Module) -> None:
    for given in ({"rule": "erk"}, {"score": "activation"}, {"repair": "bn"}):
        with pytest.raises(InputError, match="best chooses rule, score and repair"):
            prune(model, IMAGES, sparsity=0.7, best=True, **given)
    with pytest.raises(InputError, match="the budget must be a positive number of seconds, not 0"):
        prune(model, IMAGES, sparsity=0.7, best=True, budget=0)
    with pytest.raises(InputError, match="holds images out: 50 leave 3 beside the 40"):
        prune(model, IMAGES[:50], sparsity=0.7, rule="auto", config=CONFIG)
    with pytest.raises(InputError, match="none of the rules erk, lamp, global, rr, residual takes an option 'pinned'"):
        prune(model, IMAGES, sparsity=0.7, rule="auto", config=PruneConfig(count=40, options={"pinned": {}}))


@pytest.mark.parametrize("options", [{"rule": "auto", "repair": "cr+bn-short"}, {"best": True}])
def test_the_users_model_is_sacred(options: dict[str, Any]) -> None:
    model = users_model()
    before = complete_state(model)
    prune(model, IMAGES, sparsity=0.7, config=CONFIG, **options)
    assert same(complete_state(model), before)
