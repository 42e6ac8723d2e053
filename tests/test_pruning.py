from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from networks import Residual, small_net
from repairability import (
    Allocation,
    BudgetError,
    CalibrationSet,
    InputError,
    Layers,
    PruneConfig,
    allocate,
    create_model,
    diagnose,
    make_masks,
    prune,
    prune_many,
    repair_model,
)
from repairability.masks import apply_masks_
from repairability.pruning import grid_for
from repairability.rules import RULES
from test_sacred import complete_state, same, users_model

pipeline = importlib.import_module("repairability.pruning.prune")  # the package holds the function of that name
IMAGES = torch.randn(200, 3, 9, 9, generator=torch.Generator().manual_seed(2))
CONFIG = PruneConfig(count=40)
DATA_FREE_AND_MEASURED = [name for name in RULES if name != "forced"]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return create_model("networks:Residual")


@pytest.mark.parametrize("rule", DATA_FREE_AND_MEASURED)
@pytest.mark.parametrize("repair", ["none", "bn", "cr", "cr+bn"])
def test_every_rule_and_repair(rule: str, repair: str, model: nn.Module) -> None:
    config = PruneConfig(count=40, conditioned_on="cr")
    result = prune(model, IMAGES, sparsity=0.72, rule=rule, repair=repair, config=config)
    assert result.allocation.rule == rule
    assert result.repair == repair
    assert (result.diagnosis is not None) == (rule in ("raw", "residual", "rr"))
    for name in result.allocation:  # the zeros are exactly zero, and stay zero after repair
        weight = result.model.get_parameter(f"{name}.weight")
        assert (weight[~result.masks[name]] == 0).all()
        assert int((~result.masks[name]).sum()) == result.allocation.pruned(name)
    assert {"allocate", "mask", "repair"} <= result.timings.keys()
    assert result.sparsity == result.allocation.sparsity
    assert result.global_sparsity < result.sparsity or rule == "global"


def test_it_is_its_parts(model: nn.Module) -> None:
    """prune is allocate, make_masks, apply_masks_ and repair_model."""
    calibration = CalibrationSet(IMAGES, count=40)
    result = prune(model, calibration, sparsity=0.8)
    plan = allocate(model, sparsity=0.8, rule="rr", curves=diagnose(model, calibration))
    assert plan == result.allocation
    pruned = create_model("networks:Residual")
    apply_masks_(pruned, make_masks(model, plan))
    expected = repair_model(model, pruned, calibration)
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[key], value)


def test_prints_what_was_done(model: nn.Module) -> None:
    text = str(prune(model, IMAGES, sparsity=0.8, config=CONFIG))
    assert text.splitlines()[0].split() == ["layer", "kept", "total", "sparsity", "raw", "residual", "rr"]
    assert "rule rr, score magnitude, repair cr+bn: 8" in text
    assert "diagnose" in text


def test_given_curves_nothing_is_measured_again(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = CalibrationSet(IMAGES, count=40)
    found = diagnose(model, calibration)
    monkeypatch.setattr(pipeline, "diagnose", lambda *_, **__: pytest.fail("diagnosed again"))
    monkeypatch.setattr(pipeline, "measure_statistics", lambda *_, **__: pytest.fail("measured again"))
    result = prune(model, calibration, sparsity=0.8, curves=found)
    assert result.diagnosis is found


def test_rules_without_curves_never_diagnose(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "diagnose", lambda *_, **__: pytest.fail("diagnosed"))
    prune(model, IMAGES, sparsity=0.8, rule="lamp", config=CONFIG)


def test_statistics_of_other_images_are_not_used(model: nn.Module) -> None:
    other = diagnose(model, CalibrationSet(IMAGES.flip(0), count=40))
    calibration = CalibrationSet(IMAGES, count=40)
    given = prune(model, calibration, sparsity=0.8, rule="erk", repair="cr", curves=other)
    plain = prune(model, calibration, sparsity=0.8, rule="erk", repair="cr")
    for key, value in plain.model.state_dict().items():
        assert torch.equal(given.model.state_dict()[key], value)


def test_prune_many_shares_one_diagnosis(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs["grid"])
        return diagnose(*args, **kwargs)

    monkeypatch.setattr(pipeline, "diagnose", counting)
    found = list(prune_many(model, IMAGES, sparsities=[0.6, 0.98], rules=["rr", "uniform", "raw"], config=CONFIG))
    assert len(calls) == 1
    assert calls[0][0] < 0.6 < 0.98 <= calls[0][-1]
    assert [(x.allocation.target, x.allocation.rule) for x in found] == [
        (s, rule) for s in (0.6, 0.98) for rule in ("rr", "uniform", "raw")
    ]
    single = prune(model, IMAGES, sparsity=0.6, rule="uniform", config=CONFIG)
    for key, value in single.model.state_dict().items():
        assert torch.equal(found[1].model.state_dict()[key], value)


def test_the_same_answer_on_a_second_run(model: nn.Module) -> None:
    one, two = (prune(model, IMAGES, sparsity=0.8, config=CONFIG) for _ in range(2))
    assert one.allocation == two.allocation
    assert all(torch.equal(v, two.model.state_dict()[k]) for k, v in one.model.state_dict().items())


def test_the_auto_grid_grows_as_the_target_needs() -> None:
    assert grid_for([0.95])[0] == 0.7
    assert grid_for([0.95])[-1] == 0.975
    assert grid_for([0.7])[:2] == (0.6, 0.7)
    assert grid_for([0.55, 0.98], "paper") == (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.985)
    assert grid_for([0.975], "paper")[-1] == 0.975
    assert grid_for([0.975])[-4:] == (0.975, 0.985, 0.99, 0.995)
    assert grid_for([0.1])[0] == 0
    assert grid_for([0.995])[-1] == 0.995
    with pytest.raises(BudgetError, match=r"99.90 % is above 99.50 %"):
        grid_for([0.999])


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.6, 0.99])
def test_any_target_works_with_the_auto_grid(sparsity: float, model: nn.Module) -> None:
    result = prune(model, IMAGES, sparsity=sparsity, repair="cr", config=CONFIG)
    assert result.sparsity >= sparsity - 0.01


def test_options_reach_the_rules_that_take_them(model: nn.Module) -> None:
    config = PruneConfig(count=40, conditioned_on="cr", options={"solver": "exact", "floor": 0.1})
    found = list(prune_many(model, IMAGES, sparsities=[0.8], rules=["rr", "erk", "lamp"], repair="none", config=config))
    assert found[1].allocation == allocate(model, sparsity=0.8, rule="erk", floor=0.1)
    with pytest.raises(InputError, match="takes no option 'flor'"):
        prune(model, IMAGES, sparsity=0.8, rule="erk", config=PruneConfig(count=40, options={"flor": 1}))


def test_forced_projections_through_the_pipeline(model: nn.Module) -> None:
    options = {"pinned": {"shortcut": 0.5}, "rest": "rr"}
    result = prune(model, IMAGES, sparsity=0.8, rule="forced", config=PruneConfig(count=40, options=options))
    assert result.allocation["shortcut"] == 0.5
    assert result.diagnosis is not None


@pytest.mark.parametrize("repair", ["none", "bn"])
def test_a_repair_that_rr_cannot_see_is_an_error_not_a_silly_allocation(repair: str, model: nn.Module) -> None:
    """At the layer's own output BN does nothing: rr is 1 everywhere and ranks no layer."""
    with pytest.raises(InputError, match=r"the rr curves are 1 everywhere and rank no layer.*observe='norm'"):
        prune(model, IMAGES, sparsity=0.8, repair=repair, config=CONFIG)
    if repair == "bn":
        prune(model, IMAGES, sparsity=0.8, repair=repair, config=PruneConfig(count=40, observe="norm"))


def test_callables(model: nn.Module) -> None:
    def rule(layers: Layers, sparsity: float, curves: object = None) -> Allocation:
        return Allocation(dict.fromkeys(layers.names, 0.5), layers.totals, layers.n_all, "half", sparsity)

    def repair(model: nn.Module, layers: Layers, statistics: Any, calibration: CalibrationSet) -> None:
        assert set(statistics) == set(layers.names)

    result = prune(model, IMAGES, sparsity=0.5, rule=rule, repair=repair, config=CONFIG)
    assert (result.allocation.rule, result.repair) == ("half", "repair")


def test_few_images_are_said_to_cycle(model: nn.Module) -> None:
    with pytest.warns(UserWarning, match="cycles over the 160 there are"):
        prune(model, IMAGES, sparsity=0.8, rule="erk", config=CONFIG)


def test_the_users_model_is_sacred() -> None:
    model = users_model()
    before = complete_state(model)
    prune(model, IMAGES, sparsity=0.8, config=CONFIG)
    assert same(complete_state(model), before)


@pytest.mark.parametrize(
    "stage", ["diagnose", "measure_statistics", "allocate", "make_masks", "apply_masks_", "copy_of"]
)
@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError("injected")])
def test_a_failure_at_any_stage_changes_nothing(
    stage: str, fault: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = users_model()
    before = complete_state(model)

    def fail(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setattr(pipeline, stage, fail)
    rule = "erk" if stage == "measure_statistics" else "rr"
    with pytest.raises(type(fault)):
        prune(model, IMAGES, sparsity=0.8, rule=rule, config=CONFIG)
    assert same(complete_state(model), before)


def test_clear_errors() -> None:
    model = Residual()
    with pytest.raises(InputError, match="sparsity must be between 0 and 1"):
        prune(model, IMAGES, sparsity=1.2)
    with pytest.raises(InputError, match="unknown rule 'r'"):
        prune(model, IMAGES, sparsity=0.9, rule="r")
    with pytest.raises(InputError, match="unknown repair 'x'"):
        prune(model, IMAGES, sparsity=0.9, repair="x")
    with pytest.raises(InputError, match="too few images: 60"):
        prune(model, IMAGES[:60], sparsity=0.9)
    with pytest.raises(InputError, match="grid must be 'auto' or 'paper' or sparsities, not 'fine'"):
        prune(model, IMAGES, sparsity=0.9, config=PruneConfig(grid="fine"))
    with pytest.raises(BudgetError, match="above the grid's top"):
        prune(model, IMAGES, sparsity=0.9, config=PruneConfig(grid=(0.5, 0.7)))
    with pytest.raises(InputError, match="does not take a batch"):
        prune(small_net(), torch.randn(130, 5, 9, 9), sparsity=0.8)
