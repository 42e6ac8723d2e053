from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from repairability import (
    Agreement,
    CalibrationSet,
    Diagnosis,
    InputError,
    PruneConfig,
    Transition,
    create_model,
    find_transition,
    prunable_layers,
)
from repairability.detect.joint import JointNetwork, midpoints
from repairability.detect.shuffled import median_overlap, named_again
from repairability.detect.verdict import COMPARED, agreement_transition
from repairability.pruning import PruneResult, choose
from repairability.pruning.plan import Measurement
from repairability.pruning.prune import Session
from repairability.transition import overlap
from test_sacred import complete_state, same, users_model

IMAGES = torch.randn(260, 1, 16, 16, generator=torch.Generator().manual_seed(2))
CONFIG = PruneConfig(grid="paper", count=64)


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return create_model("digits")


# --- CTS -----------------------------------------------------------------------------------------------------------


def test_strict_costs_one_pass_whatever_the_sweep(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[Any] = []
    original = Measurement.diagnose

    def counting(self: Measurement, *args: Any) -> Any:
        passes.append(self.grid)
        return original(self, *args)

    monkeypatch.setattr(Measurement, "diagnose", counting)
    found = find_transition(model, IMAGES, null=False, config=CONFIG)
    assert len(passes) == 1
    assert len(passes[0]["layer3.1.conv2"]) > 10  # the paper's grid and ERK's own sparsities
    assert len(found.sparsities) == 17
    find_transition(model, IMAGES, null=False, strict=False, config=CONFIG)
    assert len(passes) == 2


@pytest.mark.parametrize("reference", ["raw", "lamp", "uniform"])
def test_other_references(reference: str, model: nn.Module) -> None:
    """One that works on curves costs a second pass; one that goes above the grid's top is still measured strictly."""
    sweep = [0.9, 0.93, 0.96]
    strict = find_transition(model, IMAGES, reference=reference, sparsities=sweep, config=CONFIG)
    assert None not in strict.series["J(reference)"]
    loose = find_transition(
        model, IMAGES, reference=reference, sparsities=sweep, strict=False, null=False, config=CONFIG
    )
    for a, b in zip(strict.series["J(rr)"], loose.series["J(rr)"], strict=True):
        assert a == pytest.approx(b, rel=1e-6)  # rr sits on measured points, so both agree


def test_a_grid_of_ones_own(model: nn.Module) -> None:
    grid = dict.fromkeys(prunable_layers(model).names, (0.5, 0.8, 0.9, 0.95, 0.99))
    found = find_transition(model, IMAGES, null=False, config=PruneConfig(count=64, grid=grid))
    assert found.unreachable == {"reference": [0.98]}  # rr reaches 98 % now, ERK's floor does not


def test_the_grid_and_the_options_of_both_rules_decide(model: nn.Module) -> None:
    """The paper's grid and ERK's floor end at 97.5 %; "auto" and no floor reach the sweep's last point, 98 %."""
    asked: dict[str, Any] = {"null": False, "strict": False}
    short = find_transition(model, IMAGES, config=CONFIG, **asked)
    assert short.unreachable == {"reference": [0.98], "rr": [0.98]}
    assert find_transition(model, IMAGES[:64], **asked).unreachable == short.unreachable  # without a config
    auto = find_transition(model, IMAGES, config=replace(CONFIG, grid="auto"), **asked)
    assert auto.unreachable == {"reference": [0.98]}
    longer = replace(CONFIG, grid="auto", options={"floor": 0.0})
    both = find_transition(model, IMAGES, config=longer, **asked)
    assert both.unreachable == {}
    assert both.series["J(rr)"] == auto.series["J(rr)"] != short.series["J(rr)"]
    assert both.series["J(reference)"][-2] != auto.series["J(reference)"][-2]  # 97.5 %: no longer uniform


def test_an_option_goes_to_the_rules_that_take_it(model: nn.Module) -> None:
    """Agreement: ERK's floor is no option of rr, whose grid goes on here."""
    config = replace(CONFIG, grid="auto", options={"floor": 0.0})
    found = find_transition(model, IMAGES, method="agreement", sparsities=(0.5, 0.98), null=False, config=config)
    assert found.unreachable == {}
    with pytest.raises(InputError, match="flor"):
        find_transition(model, IMAGES, null=False, config=replace(CONFIG, options={"flor": 0.0}))


def test_what_cannot_be_reached_is_reported(model: nn.Module) -> None:
    found = find_transition(model, IMAGES, null=False, config=CONFIG)
    assert found.unreachable == {"reference": [0.98], "rr": [0.98]}
    assert found.series["CTS"][-1] is None
    assert found.series["CTS"][0] == 0  # T is 0 at the lower anchor


def test_invariance_under_split_order_and_names(model: nn.Module) -> None:
    whole = find_transition(model, CalibrationSet(IMAGES, 64, 64), null=False)
    parts = find_transition(model, CalibrationSet(IMAGES, 64, 7), null=False)
    shuffled = find_transition(model, CalibrationSet(IMAGES[:64].flip(0), 64, 64), null=False)

    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    renamed = find_transition(Renamed(), CalibrationSet(IMAGES, 64, 64), null=False)
    for other in (parts, shuffled, renamed):
        assert (other.core, other.broad) == (whole.core, whole.broad)
        for name, values in whole.series.items():
            for a, b in zip(values, other.series[name], strict=True):
                assert (a is None) == (b is None)
                assert a is None or a == pytest.approx(b, rel=1e-3, abs=1e-5)


def test_the_null_says_when_there_is_no_information(model: nn.Module) -> None:
    """The network is random itself, so the detector must find the same on random weights of the same kind."""
    found = find_transition(model, IMAGES, config=CONFIG)
    assert found.core is not None
    assert found.null.keys() == {"shuffled", "random weights"}
    assert not found.informative
    assert "carries none" in found.advice


def test_there_and_back(model: nn.Module) -> None:
    found = find_transition(model, IMAGES, null=False, config=CONFIG)
    assert Transition.from_json(found.to_json()) == found
    assert found.advice in str(found)
    report = found.for_report()
    assert all(abs(x) <= 1 + 1e-9 for values in report["series"].values() for x in values if x is not None)


# --- agreement -----------------------------------------------------------------------------------------------------


def watched(**curves: list[float]) -> Transition:
    """A made-up sweep from 50 to 99 %: the agreement of each rule, 1,000 images, chance 0.1."""
    points = np.linspace(0.5, 0.99, len(next(iter(curves.values())))).round(3).tolist()
    found = {
        s: {rule: Agreement(values[i], 0.0, 0.0, 1000, 0.1) for rule, values in curves.items() if values[i] >= 0}
        for i, s in enumerate(points)
    }
    return agreement_transition(found)


def test_start_end_and_core_at_known_places() -> None:
    found = watched(
        erk=[0.95, 0.94, 0.80, 0.60, 0.30, 0.11, 0.10],
        lamp=[0.95, 0.94, 0.81, 0.75, 0.45, 0.10, 0.10],
        rr=[0.95, 0.93, 0.80, 0.70, 0.30, 0.10, 0.10],
    )
    points = found.sparsities
    assert found.broad == (points[2], points[5])
    assert found.core == (points[3], points[4])
    assert found.advice == (
        f"Up to {100 * points[1]:g} % any rule will do; between {100 * points[3]:g} and {100 * points[4]:g} % the rule "
        f"matters most; from {100 * points[5]:g} % on no allocation helps."
    )


def test_a_small_loss_is_no_transition() -> None:
    found = watched(erk=[0.95, 0.94, 0.93], lamp=[0.95, 0.95, 0.92], rr=[0.95, 0.95, 0.93])
    assert (found.core, found.broad) == (None, None)
    assert found.advice == "No transition up to 99 %: the best rule (erk) loses little."


def test_a_rule_that_is_behind_before_the_transition_is_not_recommended() -> None:
    found = watched(erk=[0.95, 0.94, 0.5], lamp=[0.95, 0.945, 0.5], rr=[0.85, 0.84, 0.5])
    assert found.advice.startswith("Up to 74.5 % the best rule (lamp) loses little, others more; ")


def test_rules_that_do_not_differ_have_no_core() -> None:
    found = watched(erk=[0.95, 0.5, 0.1], lamp=[0.95, 0.5, 0.1], rr=[0.95, 0.51, 0.1])
    assert found.core is None
    assert found.broad == (0.745, 0.99)
    assert "the rules do not differ beyond noise" in found.advice


def test_an_end_that_is_not_reached() -> None:
    found = watched(erk=[0.95, 0.9, 0.6], lamp=[0.95, 0.9, 0.7], rr=[0.95, 0.9, 0.6])
    assert found.broad == (0.745, 0.99)
    assert "at 99 % something is still left" in found.advice


def test_rules_that_cannot_reach_a_point_are_left_out_there() -> None:
    found = watched(erk=[0.95, 0.6, -1], lamp=[0.95, 0.8, 0.2], rr=[0.95, 0.7, 0.3])
    assert found.unreachable == {"erk": [0.99]}
    assert found.series["erk"][-1] is None


def test_the_sweep_is_refined_where_agreement_falls() -> None:
    found = {s: {"erk": Agreement(a, 0, 0, 100, 0.1)} for s, a in ((0.5, 0.9), (0.7, 0.88), (0.9, 0.3), (0.905, 0.1))}
    assert midpoints(found) == [0.8]


@pytest.fixture
def pruned(monkeypatch: pytest.MonkeyPatch) -> list[PruneResult]:
    """Every network that is pruned meanwhile."""
    results: list[PruneResult] = []
    original = Session.prune

    def watching(self: Session, *args: Any) -> PruneResult:
        results.append(original(self, *args))
        return results[-1]

    monkeypatch.setattr(Session, "prune", watching)
    return results


def test_on_a_network(model: nn.Module, pruned: list[PruneResult]) -> None:
    found = find_transition(model, IMAGES, method="agreement", sparsities=[0.5, 0.9], null=False, config=CONFIG)
    assert found.sparsities == (0.5, 0.9)
    seen = [x.allocation for x in pruned]
    assert [(a.target, a.rule) for a in seen] == [(s, rule) for s in (0.5, 0.9) for rule in COMPARED]
    assert {"erk", "lamp", "rr", "KL rr", "chance"} <= found.series.keys()
    assert Transition.from_json(found.to_json()) == found
    assert found.for_report()["series"].keys() == {"erk", "lamp", "rr", "chance"}


def test_held_out_images_are_not_calibrated_on(
    model: nn.Module, pruned: list[PruneResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    original = choose.outputs_of

    def spy(network: nn.Module, batches: Any, **asked: Any) -> list[Tensor]:
        used.append(torch.cat(list(batches)))
        return original(network, batches, **asked)

    monkeypatch.setattr(choose, "outputs_of", spy)
    find_transition(model, IMAGES, method="agreement", sparsities=[0.8], config=CONFIG)
    held = (260 - 64) // 3
    assert torch.equal(used[0], IMAGES[-held:])
    assert {x.fingerprint for x in pruned} == {CalibrationSet(IMAGES[:-held], 64).fingerprint}


def test_a_calibration_set_says_how_many_images_the_statistics_take(
    model: nn.Module, pruned: list[PruneResult]
) -> None:
    """Whatever the configuration's count is: that one is for images that are no set yet."""
    find_transition(model, CalibrationSet(IMAGES, 100), method="agreement", sparsities=[0.8], null=False, config=CONFIG)
    held = (260 - 100) // 3
    assert {x.fingerprint for x in pruned} == {CalibrationSet(IMAGES[:-held], 100).fingerprint}
    with pytest.raises(InputError, match="260 leave 20 beside the 200 of the statistics; give 290 or more"):
        find_transition(model, CalibrationSet(IMAGES, 200), method="agreement", sparsities=[0.8], config=CONFIG)


def agreed(points: list[float], **curves: list[float]) -> dict[float, dict[str, Agreement]]:
    return {
        s: {rule: Agreement(values[i], 0, 0, 1000, 0.1) for rule, values in curves.items()}
        for i, s in enumerate(points)
    }


def test_the_null_asks_only_where_the_answer_hangs_on_it() -> None:
    """ERK and LAMP differ at 0.95, not at 0.9: whether 0.9 is named again hangs on rr there, and on nothing else."""
    points = [0.5, 0.7, 0.9, 0.95]
    found = agreed(points, erk=[0.97, 0.97, 0.6, 0.6], lamp=[0.97, 0.97, 0.6, 0.3], rr=[0.97, 0.97, 0.4, 0.4])
    core = agreement_transition(found).core
    assert core == (0.9, 0.95)
    for agreeing, share in ((0.6, 0.5), (0.2, 1.0)):
        asked: list[float] = []

        def ask(s: float, same: float = agreeing, asked: list[float] = asked) -> Agreement:
            asked.append(s)
            return Agreement(same, 0, 0, 1000, 0.1)

        assert named_again(found, core, ask) == share
        assert asked == [0.9]


def test_the_points_left_out_of_the_null_do_not_count() -> None:
    """On made-up sweeps: the same overlap as asking at every point."""
    random = np.random.default_rng(0)
    points = [0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.985]
    asked, cases, seen = 0, 0, set()
    for _ in range(300):
        fall = np.clip(1.15 - np.linspace(0, random.uniform(0.3, 1.3), 9) ** 2, 0.08, 0.99)
        noisy = {rule: np.clip(fall + random.normal(0, 0.04, 9), 0, 1).tolist() for rule in COMPARED}
        found = agreed(points, **noisy)
        core = agreement_transition(found).core
        if core is None:
            continue
        theirs = np.clip(fall + random.normal(0, 0.06, 9), 0, 1)
        reached = [random.random() > 0.1 for _ in points]
        answers = {
            s: Agreement(x, 0, 0, 1000, 0.1) if ok else None for s, x, ok in zip(points, theirs, reached, strict=True)
        }
        count = []

        def ask(s: float, answers: Any = answers, count: Any = count) -> Agreement | None:
            count.append(s)
            return answers[s]

        whole = {s: {k: v for k, v in (found[s] | {"rr": answers[s]}).items() if v is not None} for s in points}
        expected = overlap(core, agreement_transition(whole).core, points)
        assert named_again(found, core, ask) == expected
        asked, cases = asked + len(count), cases + 1
        seen.add(expected)
    assert cases > 100
    assert asked < 0.7 * 9 * cases
    assert {0.0, 1.0} < seen


def test_the_median_of_the_null_stops_when_it_is_settled() -> None:
    points = [0.5, 0.9]
    found = agreed(points, erk=[0.97, 0.6], lamp=[0.97, 0.6], rr=[0.97, 0.4])

    def shuffles(same: list[float], asked: list[float]) -> list[Any]:
        def asking(x: float) -> Any:
            return lambda s: (asked.append(s), Agreement(x, 0, 0, 1000, 0.1))[1]

        return [asking(x) for x in same]

    asked: list[float] = []
    assert median_overlap(found, (0.9, 0.9), shuffles([0.2] * 20, asked)) == 1.0
    assert asked == [0.9] * 11
    assert median_overlap(found, (0.9, 0.9), shuffles([0.6] * 9 + [0.2] * 11, [])) == 1.0
    assert median_overlap(found, (0.9, 0.9), shuffles([0.6, 0.2] * 10, [])) == 0.5


@pytest.mark.slow
def test_the_null_shuffles_the_curves_of_rr_alone(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network: every shuffle is another one, and only rr is pruned anew."""
    watched = JointNetwork(model, CONFIG, CalibrationSet(IMAGES[:200], 64), (0.8, 0.9), IMAGES[200:])
    watched.__dict__["agreements"] = agreed([0.8, 0.9], erk=[0.97, 0.6], lamp=[0.97, 0.6], rr=[0.97, 0.4])
    seen: list[tuple[str, str]] = []
    original = JointNetwork.agreement

    def spy(self: JointNetwork, session: Session, rule: str, s: float) -> Any:
        assert isinstance(session.given, Diagnosis)
        seen.append((rule, str(session.given.rr)))
        return original(self, session, rule, s)

    monkeypatch.setattr(JointNetwork, "agreement", spy)
    assert 0 <= watched.shuffled((0.9, 0.9)) <= 1
    assert {rule for rule, _ in seen} == {"rr"}
    assert len({curves for _, curves in seen}) >= 10


# --- both ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["cts", "agreement"])
def test_the_users_model_is_sacred(method: str) -> None:
    images = torch.randn(200, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    model = users_model()
    before = complete_state(model)
    find_transition(model, images, method=method, sparsities=[0.9, 0.95], config=CONFIG)
    assert same(complete_state(model), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, r"unknown method 'magic'; known: agreement, cts"),
        ({"sparsities": []}, "the sweep must rise and not be empty"),
        ({"sparsities": [0.95, 0.9]}, "the sweep must rise"),
        ({"sparsities": [0.95, 1.2]}, "a sweep sparsity must be between 0 and 1"),
        ({"low": 0.97, "high": 0.9}, "low must be below high"),
        ({"high": 0.99}, "the rule rr cannot reach the anchor 99.00 %"),
        ({"reference": "erkk"}, "unknown rule 'erkk'"),
        ({"method": "agreement", "images": 80}, "holds images out: 80 leave"),
    ],
)
def test_clear_errors(options: dict[str, Any], message: str, model: nn.Module) -> None:
    images = IMAGES[: options.pop("images", 260)]
    with pytest.raises((InputError, ValueError), match=message):
        find_transition(model, images, config=CONFIG, **options)
