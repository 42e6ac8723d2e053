"""Half-way points and gaps: made-up records with known numbers; the studies that show them share their runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from repairability import create_model, prunable_layers
from repairability.experiments import RunSpec, read_study
from repairability.experiments.record import Record
from repairability.rules import allocate, get_rule
from reproduction.sections.boundaries import classes_of, crossing
from test_report_studies import failed, line, run, seeds, study_tables

STUDIES = Path(__file__).parents[1] / "reproduction" / "studies"


@pytest.mark.parametrize(
    ("points", "found"),
    [
        ({0.8: 0.9, 0.9: 0.4}, "88.0 %"),
        ({0.9: 0.4, 0.8: 0.9}, "88.0 %"),
        ({0.8: 0.9, 0.9: 0.5}, "above 90 %"),  # exactly half-way has not fallen through
        ({0.8: 0.9, 0.9: 0.5, 0.95: 0.3}, "90.0 %"),
        ({0.8: 0.9, 0.9: 0.4, 0.925: 0.6, 0.95: 0.1}, "88.0 %"),  # the first crossing
        ({0.75: 0.4, 0.8: 0.9}, "below 75 %"),
        ({0.975: 0.9}, "above 97.5 %"),
    ],
)
def test_half_way(points: dict[float, float], found: str) -> None:
    assert str(crossing(points, 0.5)) == found


def test_classes() -> None:
    def of(data: str, **more: object) -> int | None:
        return classes_of(RunSpec.read({"model": "resnet20", "data": data, **more}))

    assert (of("cifar10"), of("npz:x/CIFAR-100.npz"), of("digits"), of("random:7"), of("pets")) == (10, 100, 10, 7, 37)
    assert of("cifar10", num_classes=11) == 11
    assert of("folder:somewhere") is None


def test_boundaries_of_a_network() -> None:
    """Dense 62.7 %, 100 classes: half-way at 31.85 %."""
    records = [
        *seeds((0.4185, 0.4385), rule="rr", sparsity=0.9),  # mean 42.85
        *seeds((0.1985, 0.2185), rule="rr", sparsity=0.95),  # mean 20.85: half-way in the middle
        *seeds((0.60, 0.60), rule="lamp", sparsity=0.9),
        *seeds((0.3685, 0.3685), rule="lamp", sparsity=0.95),
        *seeds((0.2185, 0.2185), rule="lamp", sparsity=0.975),
        *seeds((0.1, 0.1), rule="uniform", sparsity=0.9),
        *seeds((0.61, 0.61), rule="erk", sparsity=0.9),
        failed(rule="raw"),
    ]
    table, _ = study_tables("boundaries", records)
    found = line(table, "ResNet18 on CIFAR100")
    assert (found["classes"], found["dense, %"], found["half-way, %"]) == ("100", "62.70", "31.85")
    assert (found["rr"], found["lamp"], found["uniform"]) == ("92.5 %", "95.8 %", "below 90 %")
    assert (found["erk"], found["best"]) == ("above 90 %", "95.8 % (lamp)")
    assert "mean over 2 seeds" in table.caption


def test_the_best_rule_may_change_at_the_crossing() -> None:
    points = (("rr", 0.9, 0.5), ("rr", 0.95, 0.1), ("lamp", 0.9, 0.4), ("lamp", 0.95, 0.2))
    table, _ = study_tables("boundaries", [run(top1, rule=rule, sparsity=s) for rule, s, top1 in points])
    assert line(table, "ResNet18 on CIFAR100")["best"] == "93.0 % (rr, lamp)"
    again = [run(0.45, rule="erk", sparsity=0.975)]  # back above half-way: the first fall counts
    table, _ = study_tables("boundaries", [run(top1, rule=rule, sparsity=s) for rule, s, top1 in points] + again)
    assert line(table, "ResNet18 on CIFAR100")["best"] == "93.0 % (rr, lamp)"


def test_rules_that_tie_are_all_named() -> None:
    table, _ = study_tables("boundaries", [run(0.5, rule=rule, sparsity=0.9) for rule in ("rr", "erk")])
    assert line(table, "ResNet18 on CIFAR100")["best"] == "above 90 % (rr = erk)"


def test_unknown_classes_are_said() -> None:
    records = [run(0.3, rule="rr", data="folder:x", num_classes=None)]
    table, _ = study_tables("boundaries", records)
    assert tuple(table.rows[0]) == ("ResNet18 on folder:x", "unknown", "62.70", "unknown", "")


def test_gaps_of_rr() -> None:
    records = [
        *seeds((0.30, 0.32, 0.34), rule="rr", sparsity=0.95),
        *seeds((0.28, 0.31, 0.31), rule="erk", sparsity=0.95),  # differences 2, 1, 3
        *seeds((0.32, 0.31, 0.34), rule="lamp", sparsity=0.95),  # -2, 1, 0
        *seeds((0.295, 0.31, 0.325), rule="global", sparsity=0.95),  # 0.5, 1, 1.5
        *seeds((0.5,), rule="raw", sparsity=0.95),
        *seeds((0.3,), rule="rr", sparsity=0.9),
        *seeds((0.31,), rule="lamp", sparsity=0.9),
    ]
    for section, at in (("boundaries", 1), ("accuracy", -1)):
        table = study_tables(section, records)[at]
        found = line(table, "ResNet18 on CIFAR100", "95 %")
        assert found["rr - erk"] == "+2.00 ± 1.00 ‡"  # standard errors 0.58 and, of the images, 0.71
        assert found["rr - lamp"] == "-0.33 ± 1.53"
        error = 100 * math.sqrt((0.3 * 0.7 + 0.5 * 0.5) / 10_000)
        assert found["rr - raw"] == f"-20.00 ± {error:.2f}* ‡"
        assert line(table, "ResNet18 on CIFAR100", "90 %")["rr - lamp"] == "-1.00 ± 0.65*"
        assert found["rr - global"] == "+1.00 ± 0.50 †"  # beyond the seeds' noise, not beyond the images'
        for words in ("over 3 seeds", "sqrt(2 p (1 - p) / n)", "ask for 4.3", "(n = 10,000: 1.41 points)"):
            assert words in table.caption


def test_gaps_of_one_seed_say_nothing_of_seeds() -> None:
    _, table = study_tables("boundaries", [run(0.3, rule=rule, sparsity=0.95) for rule in ("rr", "erk")])
    assert "Student" not in table.caption
    assert line(table, "ResNet18 on CIFAR100", "95 %")["rr - erk"] == "+0.00 ± 0.65*"


def test_grids_are_told_by_their_ends() -> None:
    long, other, same = [0.7, 0.8, 0.99], [0.7, 0.8, 0.995], [0.7, 0.9, 0.99]
    table, _ = study_tables("boundaries", [run(0.3, rule="rr", grid=grid) for grid in ("auto", long, other)])
    assert [row[0].partition(", ")[2] for row in table.rows] == ["grid auto", "grid 0.7 to 0.99", "grid 0.7 to 0.995"]
    table, _ = study_tables("boundaries", [run(0.3, rule="rr", grid=grid) for grid in (long, same)])
    assert [row[0].partition(", ")[2] for row in table.rows] == [f"grid {long}", f"grid {same}"]


# --- the studies --------------------------------------------------------------------------------------------------


def specs(name: str) -> list[str]:
    return [spec.model_dump_json() for spec in read_study(STUDIES / f"{name}.toml").specs]


def test_boundaries_runs_nothing_of_its_own() -> None:
    """The cells of the other studies, and all of them."""
    ours = ("resnet20", "resnet32", "resnet56", "resnet50", "resnet50_grid", "vgg16_quarter", "beyond")
    names = (*(f"ours/{name}" for name in ours), "main_results", "fine_transition")
    others = [spec for name in names for spec in specs(name)]
    assert set(specs("ours/boundaries")) == set(others)


def test_the_headline_is_main_results_on_all_images() -> None:
    main = {x.model_dump_json() for x in read_study(STUDIES / "main_results.toml").specs}
    found = read_study(STUDIES / "ours" / "headline.toml").specs
    assert len(found) == 21
    for spec in found:
        assert (spec.test_images, spec.precision, spec.sparsity) == (None, "float32", 0.95)
        assert spec.model_copy(update={"test_images": 4000, "precision": "bfloat16"}).model_dump_json() in main


def test_projections_in_the_transition_are_within_reach() -> None:
    layers = prunable_layers(create_model("resnet18", num_classes=100))
    found = read_study(STUDIES / "ours" / "projection_transition.toml").specs
    assert len(found) == 18
    for options in {str(spec.options): spec.options for spec in found}.values():
        assert not get_rule("forced").works_on_curves(options)
        plan = allocate(layers, sparsity=0.975, rule="forced", **options)
        (pinned,) = options["pinned"].values()
        assert plan["layer2.0.downsample.0"] == pinned
        assert plan.sparsity == pytest.approx(0.975, abs=1e-5)


def test_the_regret_of_a_choice_without_labels() -> None:
    """Seed 0 is chosen well, seed 1 loses a point to the best rule; a run without an agreement is no candidate."""

    def judged(top1: float, kl: float | None, **spec: object) -> Record:
        record = run(top1, **spec)
        return replace(record, result={**record.result, "agreement": None if kl is None else {"kl": kl, "same": 0.5}})

    records = [
        judged(0.50, 0.1, rule="erk", seed=0, sparsity=0.9),
        judged(0.40, 0.2, rule="lamp", seed=0, sparsity=0.9),
        judged(0.50, 0.2, rule="erk", seed=1, sparsity=0.9),
        judged(0.49, 0.1, rule="lamp", seed=1, sparsity=0.9),
        judged(0.90, None, rule="rr", seed=1, sparsity=0.9),
        judged(0.30, 0.1, rule="erk", seed=0, sparsity=0.95),  # alone: no choice
    ]
    (table,) = study_tables("choice", records)
    assert [tuple(row[1:]) for row in table.rows] == [
        ("90 %", "erk, lamp", "49.50", "50.00", "0.50", "1.00", "5.50"),
    ]
    assert "Mean regret over 2 choices (network, sparsity, seed): 0.50 points, at most 1.00." in table.caption
    (table,) = study_tables("choice", [run(0.5, rule="erk")])
    assert not list(table.rows)
    assert "No runs that recorded an agreement." in table.caption
