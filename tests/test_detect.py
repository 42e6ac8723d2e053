from __future__ import annotations

import warnings
from collections.abc import Iterator
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
    diagnose,
    find_transition,
    prunable_layers,
)
from repairability.detect import cts, joint
from repairability.detect.joint import _agreement_transition, _midpoints
from test_sacred import complete_state, same, users_model

IMAGES = torch.randn(260, 1, 16, 16, generator=torch.Generator().manual_seed(2))
CONFIG = PruneConfig(count=64)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return create_model("digits")


# --- CTS -----------------------------------------------------------------------------------------------------------


def test_strict_costs_one_pass_whatever_the_sweep(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    original = cts.diagnose

    def counting(*args: Any, **kwargs: Any) -> Any:
        passes.append(kwargs["grid"])
        return original(*args, **kwargs)

    monkeypatch.setattr(cts, "diagnose", counting)
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
    assert found.core is None or found.null.keys() == {"shuffled", "random weights"}
    if found.core is not None and not found.informative:
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
    return _agreement_transition(found)


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
    assert _midpoints(found) == [0.8]


def test_on_a_network(model: nn.Module) -> None:
    seen = []
    found = find_transition(
        model,
        IMAGES,
        method="agreement",
        sparsities=[0.5, 0.9],
        config=CONFIG,
        watch=lambda r: seen.append(r.allocation),
    )
    assert found.sparsities == (0.5, 0.9)
    assert [(a.target, a.rule) for a in seen] == [(s, rule) for s in (0.5, 0.9) for rule in joint.RULES]
    assert {"erk", "lamp", "rr", "KL rr", "chance"} <= found.series.keys()
    assert Transition.from_json(found.to_json()) == found
    assert found.for_report()["series"].keys() == {"erk", "lamp", "rr", "chance"}


def test_held_out_images_are_not_calibrated_on(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    original = joint.logits_of

    def spy(network: nn.Module, batches: Any) -> list[Tensor]:
        used.append(torch.cat(list(batches)))
        return original(network, batches)

    fingerprints = set()
    monkeypatch.setattr(joint, "logits_of", spy)
    find_transition(
        model,
        IMAGES,
        method="agreement",
        sparsities=[0.8],
        config=CONFIG,
        watch=lambda r: fingerprints.add(r.fingerprint),
    )
    held = (260 - 64) // 3
    assert torch.equal(used[0], IMAGES[-held:])
    assert fingerprints == {CalibrationSet(IMAGES[:-held], 64).fingerprint}


class Shuffling:
    """Stands for a comparison whose rule rr has the given agreement on shuffled curves, shuffle after shuffle."""

    def __init__(self, agreements: list[dict[float, float]]) -> None:
        model = create_model("digits")
        self.layers = prunable_layers(model)
        self.curves = diagnose(model, IMAGES, grid=(0.5, 0.8, 0.9, 0.95), layers=self.layers)
        self.answers, self.seen = iter(agreements), []  # type: ignore[var-annotated]

    def diagnosed(self, points: Any) -> Diagnosis:
        return self.curves

    def compared(self, cells: Any, curves: Diagnosis) -> dict[float, dict[str, Agreement]]:
        self.seen.append((list(cells), curves.rr))
        same = next(self.answers)
        return {s: {rule: Agreement(same[s], 0, 0, 1000, 0.1)} for s, rule in cells}


def test_the_null_of_shuffled_curves() -> None:
    """0.8: ERK and LAMP differ already. 0.9: rr makes the difference, and does so in 5 of 20 shuffles only."""
    agreed = {
        0.8: {"erk": Agreement(0.9, 0, 0, 1000, 0.1), "lamp": Agreement(0.7, 0, 0, 1000, 0.1)},
        0.9: {"erk": Agreement(0.5, 0, 0, 1000, 0.1), "lamp": Agreement(0.5, 0, 0, 1000, 0.1)},
    }
    for point in agreed.values():
        point["rr"] = Agreement(0.8, 0, 0, 1000, 0.1)
    watched = Shuffling([{0.9: 0.8 if i < 5 else 0.51} for i in range(20)])
    assert joint._shuffled_share(watched, agreed, [0.8, 0.9]) == 0.5  # type: ignore[arg-type]
    assert all(cells == [(0.9, "rr")] for cells, _ in watched.seen)
    assert len({str(curves) for _, curves in watched.seen}) > 10  # shuffled anew each time
    watched = Shuffling([{0.9: 0.8 if i < 15 else 0.51} for i in range(20)])
    assert joint._shuffled_share(watched, agreed, [0.9]) == 1.0  # type: ignore[arg-type]
    assert joint._shuffled_share(watched, agreed, [0.8]) == 1.0  # type: ignore[arg-type]


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
