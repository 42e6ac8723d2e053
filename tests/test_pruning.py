from __future__ import annotations

import copy
import functools
import importlib
import pickle
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
    Recipe,
    RepairContext,
    allocate,
    apply_masks_,
    choose_masks,
    create_model,
    diagnose,
    make_masks,
    prunable_layers,
    prune,
    prune_many,
    repair_model,
)
from repairability.pruning import budget, grid_for, measurement_for, plan
from repairability.rules import RULES
from repairability.rules.measured import rr
from test_sacred import complete_state, same, users_model

pipeline = importlib.import_module("repairability.pruning.prune")  # the package holds the function of that name
IMAGES = torch.randn(200, 3, 9, 9, generator=torch.Generator().manual_seed(2))
CONFIG = PruneConfig(count=40)
DATA_FREE_AND_MEASURED = [name for name in RULES if name != "forced"]


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return create_model("networks:Residual")


@pytest.mark.parametrize("rule", DATA_FREE_AND_MEASURED)
@pytest.mark.parametrize("repair", ["none", "bn", "cr", "cr+bn"])
def test_every_rule_and_repair(rule: str, repair: str, model: nn.Module) -> None:
    config = PruneConfig(count=40, conditioned_on="cr")
    result = prune(model, IMAGES, sparsity=0.72, rule=rule, score="magnitude", repair=repair, config=config)
    assert result.allocation.rule == rule
    assert result.repair == repair
    assert (result.diagnosis is not None) == (rule in ("raw", "residual", "rr", "output"))
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
    result = prune(model, calibration, sparsity=0.8, recipe="paper")
    plan = allocate(model, sparsity=0.8, rule="rr", curves=diagnose(model, calibration))
    assert plan == result.allocation
    pruned = create_model("networks:Residual")
    apply_masks_(pruned, make_masks(model, plan))
    expected = repair_model(model, pruned, calibration)
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[key], value)


def test_prints_what_was_done(model: nn.Module) -> None:
    text = str(prune(model, IMAGES, sparsity=0.8, recipe="paper", config=CONFIG))
    assert text.splitlines()[0].split() == ["layer", "kept", "total", "sparsity", "raw", "residual", "rr"]
    assert "rule rr, score magnitude, repair cr+bn: 8" in text
    felt = str(prune(model, IMAGES, sparsity=0.8, recipe="paper", rule="output", config=CONFIG))
    assert felt.splitlines()[0].split()[-4:] == ["raw", "residual", "rr", "output"]
    assert "diagnose" in text


def test_given_curves_nothing_is_measured_again(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = CalibrationSet(IMAGES, count=40)
    found = diagnose(model, calibration)
    monkeypatch.setattr(plan, "diagnose", lambda *_, **__: pytest.fail("diagnosed again"))
    monkeypatch.setattr(pipeline, "measure_statistics", lambda *_, **__: pytest.fail("measured again"))
    result = prune(model, calibration, sparsity=0.8, recipe="paper", curves=found)
    assert result.diagnosis is found


def test_rules_without_curves_never_diagnose(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "diagnose", lambda *_, **__: pytest.fail("diagnosed"))
    prune(model, IMAGES, sparsity=0.8, recipe="paper", rule="lamp", config=CONFIG)


@pytest.mark.parametrize("of", ["other images", "other weights", "other weights beside a large buffer"])
def test_statistics_of_other_things_are_not_used(model: nn.Module, of: str) -> None:
    calibration = CalibrationSet(IMAGES, count=40)
    if "buffer" in of:
        model.register_buffer("mask", torch.full((4,), -1e9))
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        scaled.get_parameter("conv1.weight").mul_(1.001)
    if of == "other images":
        other = diagnose(model, CalibrationSet(IMAGES.flip(0), count=40))
    else:
        other = diagnose(scaled, calibration)
    given = prune(model, calibration, sparsity=0.8, rule="erk", score="magnitude", repair="cr", curves=other)
    plain = prune(model, calibration, sparsity=0.8, rule="erk", score="magnitude", repair="cr")
    for key, value in plain.model.state_dict().items():
        assert torch.equal(given.model.state_dict()[key], value)


def test_prune_many_shares_one_diagnosis(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs["grid"])
        return diagnose(*args, **kwargs)

    monkeypatch.setattr(plan, "diagnose", counting)
    found = list(
        prune_many(model, IMAGES, sparsities=[0.6, 0.98], recipe="paper", rules=["rr", "uniform", "raw"], config=CONFIG)
    )
    assert len(calls) == 1
    assert calls[0][0] < 0.6 < 0.98 <= calls[0][-1]
    assert [(x.allocation.target, x.allocation.rule) for x in found] == [
        (s, rule) for s in (0.6, 0.98) for rule in ("rr", "uniform", "raw")
    ]
    single = prune(model, IMAGES, sparsity=0.6, recipe="paper", rule="uniform", config=CONFIG)
    for key, value in single.model.state_dict().items():
        assert torch.equal(found[1].model.state_dict()[key], value)


def test_the_same_answer_on_a_second_run(model: nn.Module) -> None:
    one, two = (prune(model, IMAGES, sparsity=0.8, recipe="paper", config=CONFIG) for _ in range(2))
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
    result = prune(model, IMAGES, sparsity=sparsity, recipe="paper", repair="cr", config=CONFIG)
    assert result.sparsity >= sparsity - 0.01


def test_options_reach_the_rules_that_take_them(model: nn.Module) -> None:
    config = PruneConfig(count=40, conditioned_on="cr", options={"solver": "exact", "floor": 0.1})
    found = list(
        prune_many(
            model,
            IMAGES,
            sparsities=[0.8],
            rules=["rr", "erk", "lamp"],
            score="magnitude",
            repair="none",
            config=config,
        )
    )
    assert found[1].allocation == allocate(model, sparsity=0.8, rule="erk", floor=0.1)
    with pytest.raises(InputError, match="takes no option 'flor'"):
        prune(
            model, IMAGES, sparsity=0.8, recipe="paper", rule="erk", config=PruneConfig(count=40, options={"flor": 1})
        )


def test_forced_projections_through_the_pipeline(model: nn.Module) -> None:
    options = {"pinned": {"shortcut": 0.5}, "rest": "rr"}
    result = prune(
        model, IMAGES, sparsity=0.8, recipe="paper", rule="forced", config=PruneConfig(count=40, options=options)
    )
    assert result.allocation["shortcut"] == 0.5
    assert result.diagnosis is not None


@pytest.mark.parametrize("repair", ["none", "bn"])
def test_a_repair_that_rr_cannot_see_is_an_error_not_a_silly_allocation(repair: str, model: nn.Module) -> None:
    """At the layer's own output BN does nothing: rr is 1 everywhere and ranks no layer."""
    with pytest.raises(InputError, match=r"the rr curves are 1 everywhere and rank no layer.*observe='norm'"):
        prune(model, IMAGES, sparsity=0.8, recipe="paper", repair=repair, config=CONFIG)
    if repair == "bn":
        prune(model, IMAGES, sparsity=0.8, recipe="paper", repair=repair, config=PruneConfig(count=40, observe="norm"))


def test_callables(model: nn.Module) -> None:
    def rule(layers: Layers, sparsity: float, curves: object = None) -> Allocation:
        return Allocation(dict.fromkeys(layers.names, 0.5), layers.totals, layers.n_all, "half", sparsity)

    def repair(context: RepairContext) -> None:
        assert set(context.statistics) == set(context.layers.names)

    result = prune(model, IMAGES, sparsity=0.5, rule=rule, score="magnitude", repair=repair, config=CONFIG)
    assert (result.allocation.rule, result.repair) == ("half", "repair")


def test_curves_that_are_given_reach_every_rule(model: nn.Module) -> None:
    """A bare function says nothing of curves: it is handed those that are there; a partial of a rule works on them."""
    calibration = CalibrationSet(IMAGES, count=40)
    diagnosis = diagnose(model, calibration)
    handed = []

    def rule(layers: Layers, sparsity: float, curves: Any = None) -> Allocation:
        handed.append(curves)
        return allocate(layers, sparsity=sparsity, rule="erk")

    result = prune(model, calibration, sparsity=0.8, rule=rule, score="magnitude", repair="none", curves=diagnosis)
    assert handed == [diagnosis]
    assert result.diagnosis is diagnosis
    for own in (functools.partial(RULES["rr"], solver="exact"), functools.partial(rr, solver="exact")):
        result = prune(model, calibration, sparsity=0.8, rule=own, score="magnitude", repair="none", curves=diagnosis)
        assert result.allocation == allocate(model, sparsity=0.8, rule="rr", curves=diagnosis, solver="exact")
    own = functools.partial(RULES["rr"], solver="exact")
    assert (
        prune(model, calibration, sparsity=0.8, rule=own, score="magnitude", repair="cr+bn").diagnosis == diagnosis
    )  # measured for it


def test_an_allocation_in_place_of_a_rule(model: nn.Module) -> None:
    ready = allocate(model, sparsity=0.8, rule="lamp")
    ours = prune(model, IMAGES, recipe="paper", rule=ready, config=CONFIG)
    theirs = prune(model, IMAGES, sparsity=0.8, recipe="paper", rule="lamp", config=CONFIG)
    assert ours.allocation is ready
    assert all(torch.equal(v, theirs.model.state_dict()[k]) for k, v in ours.model.state_dict().items())
    with pytest.raises(InputError, match="for sparsity 0.8, and sparsity=0.7 was asked"):
        prune(model, IMAGES, sparsity=0.7, recipe="paper", rule=ready, config=CONFIG)
    with pytest.raises(InputError, match="say how sparse"):
        prune(model, IMAGES, recipe="paper", rule="lamp", config=CONFIG)


@pytest.mark.parametrize("score", ["magnitude", "activation", "second_order"])
def test_what_prune_does_can_be_done_step_by_step(model: nn.Module, score: str) -> None:
    calibration = CalibrationSet(IMAGES, count=40)
    whole = prune(model, calibration, sparsity=0.8, recipe="paper", score=score)
    layers = prunable_layers(model)
    diagnosis = diagnose(model, calibration, layers=layers)
    plan = allocate(layers, sparsity=0.8, rule="rr", curves=diagnosis)
    masks = choose_masks(model, plan, calibration, score=score)
    pruned = copy.deepcopy(model)
    apply_masks_(pruned, masks)
    repaired = repair_model(model, pruned, calibration, repair="cr+bn")
    assert all(torch.equal(mask, whole.masks[name]) for name, mask in masks.items())
    for key, value in whole.model.state_dict().items():
        torch.testing.assert_close(repaired.state_dict()[key], value, msg=key)


def test_each_rule_of_a_comparison_gets_its_own_options(model: nn.Module) -> None:
    """Also those of the rule that `forced` leaves the rest to."""
    config = PruneConfig(count=40, options={"pinned": {"conv2": 0.5}, "rest": "rr", "solver": "exact", "floor": 0.0})
    erk, forced = prune_many(
        model, IMAGES, sparsities=[0.8], rules=["erk", "forced"], score="magnitude", repair="cr", config=config
    )
    assert erk.allocation == allocate(model, sparsity=0.8, rule="erk", floor=0.0)
    assert forced.allocation.rule == "forced(rr)"
    assert forced.diagnosis is not None
    alone = {name: value for name, value in config.options.items() if name != "floor"}
    (single,) = prune_many(
        model,
        IMAGES,
        sparsities=[0.8],
        rules=["forced"],
        score="magnitude",
        repair="cr",
        config=PruneConfig(count=40, options=alone),
    )
    assert forced.allocation == single.allocation


def test_one_place_decides_which_curves_are_measured() -> None:
    def wanted(rule: Any, score: str = "magnitude", repair: str = "cr+bn", **config: Any) -> Any:
        return measurement_for(
            Recipe(rule, score, repair, config.pop("rule_options", {})), [0.9], PruneConfig(**config)
        )

    assert wanted("erk") is wanted("forced") is None
    assert wanted("forced", rule_options={"rest": "rr"}) == wanted("rr")
    assert wanted("rr", "second_order") == wanted("rr")  # only a refit's curves know of scores
    assert wanted("rr", "second_order", "reconstruct").score.name == "second_order"
    assert wanted("rr", "second_order", "reconstruct", conditioned_on="cr").repair.name == "cr"
    assert wanted("rr", grid=(0.5, 0.95)).grid == (0.5, 0.95)
    assert wanted("rr").grid == grid_for([0.9])
    assert wanted("rr", observe="norm").observe == "norm"


def test_few_images_are_said_to_cycle(model: nn.Module) -> None:
    with pytest.warns(UserWarning, match="cycles over the 160 there are"):
        prune(model, IMAGES, sparsity=0.8, recipe="paper", rule="erk", config=CONFIG)


def test_the_users_model_is_sacred() -> None:
    model = users_model()
    before = complete_state(model)
    prune(model, IMAGES, sparsity=0.8, recipe="paper", config=CONFIG)
    assert same(complete_state(model), before)


@pytest.mark.parametrize(
    "stage", ["diagnose", "measure_statistics", "allocate", "choose_masks", "apply_masks_", "copy_of"]
)
@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError("injected")])
def test_a_failure_at_any_stage_changes_nothing(
    stage: str, fault: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = users_model()
    before = complete_state(model)

    def fail(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setattr({"diagnose": plan, "allocate": budget}.get(stage, pipeline), stage, fail)
    rule = "erk" if stage == "measure_statistics" else "rr"
    with pytest.raises(type(fault)):
        prune(model, IMAGES, sparsity=0.8, recipe="paper", rule=rule, config=CONFIG)
    assert same(complete_state(model), before)


def test_clear_errors() -> None:
    model = Residual()
    with pytest.raises(InputError, match="sparsity must be between 0 and 1"):
        prune(model, IMAGES, sparsity=1.2, recipe="paper")
    with pytest.raises(InputError, match="unknown rule 'r'"):
        prune(model, IMAGES, sparsity=0.9, recipe="paper", rule="r")
    with pytest.raises(InputError, match="unknown repair 'x'"):
        prune(model, IMAGES, sparsity=0.9, recipe="paper", repair="x")
    with pytest.raises(InputError, match="images are all the same"):
        prune(model, torch.ones(60, 3, 9, 9), sparsity=0.9, recipe="paper")
    with pytest.raises(InputError, match="grid must be 'auto' or 'paper' or sparsities, not 'fine'"):
        prune(model, IMAGES, sparsity=0.9, recipe="paper", config=PruneConfig(grid="fine"))
    with pytest.raises(BudgetError, match="above the grid's top"):
        prune(model, IMAGES, sparsity=0.9, recipe="paper", config=PruneConfig(grid=(0.5, 0.7)))
    with pytest.raises(InputError, match="does not take a batch"):
        prune(small_net(), torch.randn(130, 5, 9, 9), sparsity=0.8, recipe="paper")


def test_few_images_are_enough_and_said() -> None:
    with pytest.warns(UserWarning, match="they take the 60 that there are"):
        result = prune(create_model("networks:Residual"), IMAGES[:60], sparsity=0.9, recipe="paper", rule="uniform")
    assert result.sparsity == pytest.approx(0.9, abs=0.01)


def test_a_repair_that_leaves_nan_is_an_error() -> None:
    def ruin_(context: RepairContext) -> None:
        with torch.no_grad():
            context.model.get_parameter("head.bias").fill_(torch.nan)

    with pytest.raises(InputError, match=r"repair 'ruin_' left nan or inf in head.bias"):
        prune(Residual(), IMAGES, sparsity=0.5, rule="erk", score="magnitude", repair=ruin_)


def test_a_result_is_pickled_and_copied(model: nn.Module) -> None:
    result = prune(model, IMAGES, sparsity=0.8, recipe="paper", config=CONFIG)
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert again.allocation == result.allocation
        assert again.diagnosis.rr.to_json() == result.diagnosis.rr.to_json()
        assert all(torch.equal(again.masks[layer], mask) for layer, mask in result.masks.items())
        with pytest.raises(TypeError, match="does not support item assignment"):
            again.masks.tensors["conv1"] = 0
