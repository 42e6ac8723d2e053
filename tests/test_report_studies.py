"""Studies in the report: made-up records with known numbers, the paper's tables, and every studies/*.toml."""

from __future__ import annotations

import itertools
import math
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repairability import InputError
from repairability.detect import Transition
from repairability.experiments import Record, RunSpec, StudyEntry, read_study
from repairability.experiments.study import section_name, tomllib
from repairability.report import FORMATS, sections
from repairability.report.estimates import Estimate
from repairability.report.sections import SMOKE, Section
from repairability.report.sections.groups import data_name, model_name
from repairability.report.store import counts, write_store_report
from repairability.tables import Table
from reproduction import paper
from reproduction.paper import Number, number, paper_table
from reproduction.sections import accuracies, allocations, architectures, boundaries, choice, cost, detections
from reproduction.sections.allocations import uncapped
from reproduction.sections.detections import rank_correlation

FOLDER = Path(__file__).parents[1] / "reproduction" / "studies"
PAPER, OURS = sorted(FOLDER.glob("*.toml")), sorted(FOLDER.glob("ours/*.toml"))
NAMED = [
    section
    for content in (tomllib.loads(file.read_text()) for file in PAPER + OURS)
    for section in [content.get("section", "accuracy"), *content.get("sections", [])]
]
SECTIONS = {section_name(section): section for section in NAMED}
"""Every section that a study names, by its short name."""

LAYERS = {row["Layer"]: row for row in paper_table("layerwise_delta")}
PROJECTIONS = [layer for layer in LAYERS if "downsample" in layer]
TOTALS = {layer: 8_192 if layer in PROJECTIONS else 100_000 for layer in LAYERS}
ABOUT = {"commit": "abc123", "hardware": "two cores", "host": "here", "seconds": {"diagnose": 30.0, "evaluate": 90.0}}
RULES = ("global", "uniform", "raw", "residual", "rr", "erk", "lamp")
DATA = ("cifar10", "cifar100")
counter = itertools.count()


def study_section(name: str, records: Sequence[Record], *, smoke: bool = False) -> Section:
    return sections.study_section((SECTIONS[name],), records, smoke=smoke)


def study_tables(name: str, records: Sequence[Record], *, smoke: bool = False) -> list[Table]:
    return list(study_section(name, records, smoke=smoke).tables)


def run(top1: float = 0.1, *, result: dict[str, Any] | None = None, **spec: Any) -> Record:
    """A done run of ResNet18 on CIFAR-100."""
    settings = RunSpec.read({"model": "resnet18", "data": "cifar100", "num_classes": 100, **spec})
    column = "ERK sparsity" if settings.rule == "erk" else "RR sparsity"
    found = {
        "achieved": settings.sparsity,
        "global_sparsity": settings.sparsity * 11_157_504 / 11_166_912,
        "top1": top1,
        "top5": top1,
        "loss": 1.0,
        "n": 10_000,
        "dense_top1": 0.627,
        "dense_bn_top1": 0.62,
        "allocation": {layer: float(row[column]) for layer, row in LAYERS.items()},
        "totals": TOTALS,
        "n_all": sum(TOTALS.values()) + 9_408,
        "projections": PROJECTIONS,
        "objective": None,
        "agreement": None,
        "fingerprint": "f",
        **(result or {}),
    }
    return Record(f"run{next(counter)}", settings, "done", found, "", ABOUT)


def failed(**spec: Any) -> Record:
    settings = RunSpec.read({"model": "resnet18", "data": "cifar100", **spec})
    return Record(f"run{next(counter)}", settings, "failed", {}, "InputError: <b>no weights</b>", ABOUT)


def detected(core: Sequence[float] | None, broad: Sequence[float] | None, **spec: Any) -> Record:
    points = (0.9, 0.945, 0.95, 0.955, 0.96)
    series = {name: [0.0, 0.1, 0.5, 0.6, 0.2] for name in ("G", "T", "CTS", "smoothed")}
    bounds = [None if each is None else (each[0], each[1]) for each in (core, broad)]
    found = Transition("cts", points, series, bounds[0], bounds[1], null={"shuffled": 0.25})
    settings = RunSpec.read({"model": "resnet18", "data": "cifar100", "task": "detect", **spec})
    return Record(f"run{next(counter)}", settings, "done", {"transition": found.to_dict()}, "", ABOUT)


def seeds(values: Sequence[float], **spec: Any) -> list[Record]:
    return [run(top1, seed=seed, **spec) for seed, top1 in enumerate(values)]


def line(table: Table, *labels: str) -> dict[str, str]:
    """The row that starts with these labels."""
    (found,) = [row for row in table.rows if tuple(row[: len(labels)]) == labels]
    return dict(zip(table.columns, found, strict=True))


def dashed(text: str) -> str:
    """With plain dashes."""
    return text.replace("\N{EN DASH}", "-")


def smoke_records() -> list[Record]:
    """What a smoke run leaves: another data set, one seed, few images, a missing rule, a failed run, a detection."""
    tiny = {"result": {"n": 16, "objective": 0.9}, "data": "random:100", "repair": "cr"}
    records = [run(0.1, rule=rule, sparsity=s, **tiny) for rule in RULES[:-1] for s in (0.5, 0.95)]
    other = {"model": "digits", "num_classes": None, "data": "digits"}
    records += [run(0.3, rule=rule, sparsity=0.9, **other) for rule in ("rr", "erk")]
    pinned = {"pinned": {"*downsample*": 0.7}, "rest": "erk"}
    records += [run(0.2, rule="forced", options=pinned, sparsity=0.95, data="random:100")]
    return [*records, failed(rule="lamp"), detected(None, None, data="random:100", sweep=[0.9, 0.95])]


# --- the paper's tables -------------------------------------------------------------------------------------------


def test_the_papers_tables_are_carried_unchanged(shared: Path) -> None:
    theirs = {file.name: file.read_bytes() for file in (shared / "paper").glob("*.csv")}
    assert theirs == {file.name: file.read_bytes() for file in paper.FOLDER.glob("*.csv")}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("17.68 ± 0.35", Number(17.68, 0.35)),
        ("17.68±0.35", Number(17.68, 0.35)),
        ("+1.12", Number(1.12)),
        ("-0.88", Number(-0.88)),
        ("95%", Number(95.0)),
        ("", None),
    ],
)
def test_cells_of_the_paper(text: str, found: Number | None) -> None:
    assert number(text) == found


def test_what_the_paper_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="'7.23 min'"):
        number("7.23 min")
    with pytest.raises(InputError, match="did you mean main_results"):
        paper_table("main_result")


def test_intervals_of_the_paper() -> None:
    assert paper.interval("95.0-95.5%") == (0.95, 0.955)
    assert paper.interval("97.0%") == (0.97, 0.97)
    assert paper.interval("not detected") is None


def test_names_meet_the_papers() -> None:
    for name in ("cifar100", "npz:some/CIFAR-100.npz", "folder:data/cifar_100"):
        assert data_name(name) == "CIFAR100"
    assert data_name("npz:cifar10.npz") == "CIFAR10"
    assert data_name("pets") == "Oxford Pets"
    assert data_name("random:100") == "random:100"
    assert (model_name("vgg16_bn"), model_name("resnet34"), model_name("digits")) == ("VGG16-BN", "ResNet34", "digits")


# --- known numbers ------------------------------------------------------------------------------------------------


def test_half_widths() -> None:
    assert Estimate(0.5, 0.02, 3, 100).half_width == pytest.approx(4.302653 * 0.02 / math.sqrt(3))
    assert Estimate(0.5, 0.05, 1, 100).half_width == pytest.approx(0.098)
    assert Estimate(0.5, None, 1, 100).half_width is None


def test_main_results_beside_the_papers() -> None:
    records = [*seeds((0.12, 0.13, 0.14), rule="rr", sparsity=0.95), *seeds((0.09,), rule="erk", sparsity=0.95)]
    (table,) = study_tables("main_results", [*records, failed(rule="lamp", sparsity=0.95)])
    ours = line(table, "CIFAR100", "95 %", "ours")
    assert (ours["rr"], ours["erk"], ours["global"]) == ("13.00 ± 1.00", "9.00 ± 0.29*", "")
    assert line(table, "CIFAR100", "95 %", "95 %")["rr"] == "±2.48"  # 4.3027 / sqrt(3)
    assert line(table, "CIFAR100", "95 %", "paper")["rr"] == "11.86"
    assert line(table, "CIFAR100", "95 %", "difference") | {"rr": "", "erk": ""} == {
        **dict.fromkeys(table.columns, ""),
        "data": "CIFAR100",
        "sparsity": "95 %",
        "number": "difference",
    }
    assert line(table, "CIFAR100", "95 %", "difference")["rr"] == "+1.14"
    assert not [row for row in table.rows if row[0] == "CIFAR10" and row[2] != "paper"]  # only the paper has it
    for word in ("n = 10,000 test images", "Commit: abc123", "Hardware: two cores", "dense 62.70 %", "Student's t"):
        assert word in table.caption
    assert "1 of 5 runs failed" in table.caption
    assert SMOKE not in table.caption


def test_gaps_are_paired_by_seed() -> None:
    records = [*seeds((0.10, 0.14), rule="rr", sparsity=0.95), *seeds((0.08, 0.10), rule="erk", sparsity=0.95)]
    (table,) = study_tables("paired_gap", records)
    found = line(table, "CIFAR100", "95 %")
    assert found["rr - erk"] == "+3.00 ± 1.41"  # of 2 and 4 points
    assert found["rr - erk, paper"] == "+2.48 ± 0.69"
    assert found["rr - erk, difference"] == "+0.52"
    assert found["rr - erk, 95 %"] == "±12.71"  # 12.706 * 1.4142 / sqrt(2)


def test_the_central_band_is_ours() -> None:
    gap = {0.935: 0.0, 0.94: 0.02, 0.945: 0.03, 0.95: 0.001, 0.955: 0.02}
    records = [
        run(
            0.1 + (top1 if rule == "rr" else 0) + (0.004 * seed if rule == "rr" else 0),
            rule=rule,
            sparsity=s,
            seed=seed,
        )
        for s, top1 in gap.items()
        for rule in ("rr", "erk")
        for seed in (0, 1)
    ]
    _, table = study_tables("fine_transition", records)
    assert "CIFAR100: 94-94.5 %" in dashed(table.caption)
    assert "The paper's: 94-95.5 %" in dashed(table.caption)
    assert line(table, "CIFAR100", "94 %")["rr - erk, paper"] == "+3.12 ± 0.64"
    assert line(table, "CIFAR100", "93.5 %")["rr - erk, paper"] == "+0.35"  # 18.54 - 18.19


def test_lamp_and_raw() -> None:
    records = [run(top1, rule=rule, sparsity=0.955) for rule, top1 in (("rr", 0.1), ("lamp", 0.09), ("raw", 0.05))]
    (lamp,), (raw,) = study_tables("lamp_gap", records), study_tables("raw_gap", records)
    assert line(lamp, "CIFAR100", "95.5 %", "paper")["rr - lamp"] == "+1.62"
    assert line(lamp, "CIFAR100", "95.5 %", "difference")["rr - lamp"] == "-0.62"
    assert line(raw, "CIFAR100", "95.5 %", "paper")["rr - raw"] == "+2.62"
    assert line(raw, "CIFAR100", "95.5 %", "difference")["rr - raw"] == "+2.38"


def test_layer_by_layer() -> None:
    section = study_section(
        "layerwise", [run(rule=rule, sparsity=0.95, seed=s) for rule in ("rr", "erk") for s in (0, 1)]
    )
    (table,) = section.tables
    found = line(table, "layer2.0.downsample.0")
    assert (found["rr - erk"], found["rr - erk, paper"]) == ("+0.700 ± 0.000", "+0.700")
    assert {row[table.columns.index("rr, difference")] for row in table.rows} == {"+0.000"}
    assert len(table.rows) == 19
    assert list(section.figures) == ["layerwise_cifar100_95"]


def test_correlations_of_the_papers_own_allocations() -> None:
    (table,) = study_tables("allocation_correlation", [run(rule=rule, sparsity=0.95) for rule in ("rr", "erk")])
    found = line(table, "CIFAR100", "95 %")
    assert found["Pearson"].removesuffix("*") == found["Pearson, paper"]
    assert found["Spearman, difference"] == "+0.000"
    assert "highly correlated" in table.caption


def test_the_uncapped_densities_are_the_papers() -> None:
    densities = uncapped(RunSpec(model="resnet18", data="cifar100", rule="erk", sparsity=0.95, num_classes=100))
    assert [f"{densities[row['Layer']]:.3f}" for row in paper_table("erk_cap")] == ["1.534", "0.763", "0.381"]
    assert uncapped(RunSpec(model="resnet1", data="cifar100")) == {}
    (table,) = study_tables("erk_cap", [run(rule=rule, sparsity=0.95) for rule in ("rr", "erk")])
    found = line(table, "CIFAR100", "95 %", "layer2.0.downsample.0", "difference")
    assert (found["uncapped density"], found["rr sparsity"]) == ("+0.000", "+0.000")


def test_achieved_is_the_global_sparsity() -> None:
    table, prunable = study_tables("achieved_sparsity", [run(rule="erk", sparsity=0.975, data="npz:x/cifar10.npz")])
    assert line(table, "CIFAR10", "97.5 %", "ours")["erk"] == "97.42"
    assert line(table, "CIFAR10", "97.5 %", "difference")["erk"] == "+0.00"
    assert line(prunable, "CIFAR10", "97.5 %", "ours")["erk"] == "97.50"


def test_projections_forced() -> None:
    records = []
    for s, repair, seed in itertools.product((0.0, 0.7), ("bn", "cr+bn"), (0, 1)):
        plan = {layer: s if layer in PROJECTIONS else 0.96 for layer in LAYERS}
        options = {"pinned": {"*downsample*": s}, "rest": "erk"}
        top1 = 0.05 + 0.02 * seed + (0.03 if repair == "bn" else 0.06)
        records.append(run(top1, rule="forced", options=options, repair=repair, seed=seed, result={"allocation": plan}))
    (table,) = study_tables("projection_forced", records)
    assert "mean over 2 seeds" in table.caption
    assert table.title == "Projection-forced ERK on ResNet18: top-1 accuracy by repair, %"
    (other,) = study_tables("projection_forced", [run(rule="forced", options=options, model="resnet50_v1")])
    assert other.title == "Projection-forced ERK (the paper's rows: ResNet18): top-1 accuracy by repair, %"
    ours = line(table, "CIFAR100", "95 %", "70 %", "ours")
    assert (ours["bn"], ours["cr+bn"], ours["regular convolutions"]) == ("9.00 ± 1.41", "12.00 ± 1.41", "96.00 ± 0.00")
    assert line(table, "CIFAR100", "95 %", "0 %", "difference")["regular convolutions"] == "-0.49"


@pytest.mark.parametrize(
    ("section", "model", "place"), [("vgg16_bn", "vgg16_bn", "85 %"), ("resnet34", "resnet34", "90 %")]
)
def test_networks(section: str, model: str, place: str) -> None:
    s = float(place.removesuffix(" %")) / 100
    records = [run(0.5, rule=rule, sparsity=s, model=model, data="cifar10", seed=1) for rule in ("rr", "lamp")]
    main, gains, achieved = study_tables(section, records)
    assert line(main, "CIFAR10", place, "ours")["rr"].startswith("50.00")
    assert line(gains, "CIFAR10", place, "ours")["rr - lamp"].startswith("+0.00")
    assert line(achieved, "CIFAR10", place, "1", "ours")["rr"]
    assert line(achieved, "CIFAR10", place, "1", "difference")["rr"]
    assert len({row[:3] for row in achieved.rows}) == 24


def test_where_rr_is_useful() -> None:
    records = [
        *seeds((0.5, 0.52), rule="rr", sparsity=0.95),
        *seeds((0.4, 0.42), rule="erk", sparsity=0.95),
        *seeds((0.5, 0.52), rule="rr", sparsity=0.9),
        *seeds((0.6, 0.62), rule="erk", sparsity=0.9),
    ]
    (table,) = study_tables("architecture_summary", records)
    found = line(table, "ResNet18", "CIFAR100")
    assert (found["rr best at"], found["rr above erk at"]) == ("95 %", "95 %")
    assert found["paper: rr best at"] == "93.5 %, 94 %, 94.5 %, 95 %, 95.5 %, 96 %, 97.5 %"
    assert line(table, "ResNet34", "CIFAR100")["paper: region"] == "97.5 %"
    assert line(table, "ResNet34", "CIFAR100")["rr best at"] == ""


def test_cores_by_seed_and_by_majority() -> None:
    records = [
        detected((0.95, 0.955), (0.945, 0.96), seed=0),
        detected((0.95, 0.955), None, seed=1),
        detected((0.945, 0.95), None, seed=2),
    ]
    (table,) = study_tables("cts_per_seed", records)
    row = table.rows[[r[:3] for r in table.rows].index(("ResNet18", "CIFAR100", "0"))]
    assert row[3] == "paper"
    found = tuple(map(dashed, row[4:]))
    assert found[:3] == ("95-95.5 %", "95-95.5 %", "+0.0, +0.0")
    assert found[3:] == ("94.5-96 %", "94-96 %", "+0.5, +0.0", "shuffled 0.25")
    (cores,) = study_tables("majority_cores", records)
    agreed = line(cores, "ResNet18", "CIFAR100")
    assert (dashed(agreed["core"]), agreed["same in all seeds"]) == ("95-95.5 %", "no")
    assert agreed["difference"] == "+0.0, +0.0"
    assert line(cores, "ResNet34", "CIFAR100")["paper's seeds, our rule"] == "97.5 %"  # the paper prints 97.0-97.5
    (every,) = study_tables("detectors", records)
    assert len(every.rows) == 3
    assert "grid" not in every.columns


def test_cores_on_two_grids_stand_apart() -> None:
    """Each grid beside the paper's number, and not one in the other's place."""
    records = [
        detected((0.95, 0.955), None, seed=0),
        detected((0.96, 0.98), None, seed=0, grid="auto", options={"floor": 0.0}),
    ]
    for section in ("cts_per_seed", "majority_cores"):
        (table,) = study_tables(section, records)
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows if row[:2] == ("ResNet18", "CIFAR100")]
        found = {row["grid"]: dashed(row["core"]) for row in rows if row["grid"]}
        assert found == {"paper": "95-95.5 %", "auto, floor=0.0": "96-98 %"}
    (every,) = study_tables("detectors", records)
    assert [row[4] for row in every.rows] == ["paper", "auto, floor=0.0"]


def test_consistency_over_rules() -> None:
    records = [
        run(top1, rule=rule, seed=seed, sparsity=0.95, result={"objective": j})
        for seed in (0, 1)
        for rule, j, top1 in (("rr", 0.5, 0.3), ("erk", 0.6, 0.2), ("lamp", 0.7, 0.1))
    ]
    (table,) = study_tables("consistency", records)
    found = line(table, "CIFAR100", "95 %")
    assert (found["Spearman"], found["Kendall"]) == ("1.000 ± 0.000", "1.000 ± 0.000")
    assert found["Spearman, difference"] == "+0.688"


def test_consistency_over_seeds() -> None:
    pairs = {0: [(3, 0.1), (2, 0.2), (1, 0.3)], 1: [(3, 0.1), (2, 0.3), (1, 0.2)]}
    records = [
        run(top1, rule=rule, seed=seed, sparsity=0.95, result={"objective": j})
        for seed, cells in pairs.items()
        for rule, (j, top1) in zip(("rr", "erk", "lamp"), cells, strict=True)
    ]
    (table,) = study_tables("consistency", records)
    found = line(table, "CIFAR100", "95 %")
    spread = [statistics.stdev([1, 0.5]), statistics.stdev([1, 1 / 3])]
    assert (found["Spearman"], found["Kendall"]) == (f"0.750 ± {spread[0]:.3f}", f"0.667 ± {spread[1]:.3f}")
    (single,) = study_tables("consistency", records[:3])
    assert line(single, "CIFAR100", "95 %")["Spearman"] == "1.000"
    constant = [replace(record, result={**record.result, "objective": 1.0}) for record in records[3:]]
    (table,) = study_tables("consistency", [*records[:3], *constant])
    assert "Spearman" not in table.columns  # no mean over seeds of which one has none


def test_rank_correlation() -> None:
    assert rank_correlation([3, 2, 1], [0.1, 0.2, 0.3]) == (1, 1)  # lower J, higher accuracy
    assert rank_correlation([1, 2, 3], [0.1, 0.2, 0.3]) == (-1, -1)
    assert all(math.isnan(x) for x in rank_correlation([1, 1, 1], [0.1, 0.2, 0.3]))


def test_transfer_and_calibration() -> None:
    (table,) = study_tables("transfer", [run(0.25, rule="rr", sparsity=0.95, data="pets", num_classes=37)])
    assert line(table, "Oxford Pets", "95 %", "difference")["rr"] == "-3.91"
    records = [run(0.1, rule=rule, sparsity=0.95, count=count) for rule in ("rr", "erk") for count in (16, 128)]
    (table,) = study_tables("calibration_size", records)
    assert line(table, "CIFAR100", "95 %", "16", "difference")["rr"] == "-2.51"
    assert line(table, "CIFAR100", "95 %", "128", "ours")["rr sparsity"] == "94.92*"


def test_cost_per_sparsity_point() -> None:
    records = [run(rule=rule, sparsity=s) for rule in ("rr", "erk") for s in (0.94, 0.95)]
    table, stages = study_tables("diagnostic_cost", records)
    median = line(table, "Median time per sparsity point")
    assert (median["ours"], median["difference"]) == ("4.00 min", "")  # of another machine
    for item in ("Candidate sparsities", "Repairable convolutional layers", "BN recalibration batches"):
        assert line(table, item)["difference"] == "+0"
    assert line(stages, "diagnose")["sum, s"] == "120.00"


def test_the_cost_of_a_reconstruction_on_fewer_images() -> None:
    """It broke: the number of images belongs to the name of a repair, and not to the registry."""
    table, _ = study_tables("diagnostic_cost", [run(rule="rr", repair="reconstruct@256+bn-short")])
    assert line(table, "BN recalibration batches")["ours"] == "2"


def test_a_section_shows_its_own_of_a_studys_runs_and_says_only_their_origin() -> None:
    """main_results has more than paired_gap and layerwise show, fine_transition more than lamp_gap."""
    other = {"commit": "def456", "hardware": "eight cores"}
    records = [
        run(0.2, rule=rule, sparsity=s, data=data) for rule in RULES for s in (0.935, 0.94, 0.95) for data in DATA
    ]
    records = [replace(r, provenance=other) if r.spec.rule not in ("rr", "erk") else r for r in records]
    records.append(failed(rule="uniform"))
    (gap,) = study_tables("paired_gap", records)
    assert "Commit: abc123." in gap.caption
    assert "failed" not in gap.caption
    assert {row[0] for row in gap.rows if row[2]} == {"CIFAR10", "CIFAR100"}
    (layers,) = study_tables("layerwise", records)
    assert layers.title == "Sparsity of each layer, CIFAR100 at 95 %: RR against ERK"
    assert "ResNet18 on CIFAR100 (dense 62.70 %). Commit: abc123." in layers.caption
    (lamp,) = study_tables("lamp_gap", records)
    assert "93.5 %" not in {row[1] for row in lamp.rows}
    assert "def456, abc123" in lamp.caption or "abc123, def456" in lamp.caption
    achieved, _ = study_tables("achieved_sparsity", records)
    assert {row[1] for row in achieved.rows if row[2] == "ours"} == {"95 %"}
    assert "lamp" not in achieved.columns
    cost, _ = study_tables("diagnostic_cost", records)
    assert line(cost, "Rules at each")["ours"] == "6: erk, global, raw, residual, rr, uniform"
    assert "1 of 37 runs failed" in cost.caption


def test_consistency_is_at_the_papers_sparsities_on_its_network_alone() -> None:
    def measured(model: str) -> list[Record]:
        ranks = (("rr", 0.5, 0.3), ("erk", 0.6, 0.2), ("lamp", 0.7, 0.1))
        return [
            run(top1, model=model, rule=rule, sparsity=s, result={"objective": j})
            for s in (0.9, 0.95)
            for rule, j, top1 in ranks
        ]

    (table,) = study_tables("consistency", measured("resnet18"))
    assert [row[1] for row in table.rows] == ["94.5 %", "95 %", "95.5 %"]
    (table,) = study_tables("consistency", measured("resnet20"))
    assert [row[1] for row in table.rows] == ["90 %", "95 %"]


def test_settings_that_differ_are_told_apart() -> None:
    records = [run(0.1, rule="rr", observe=observe) for observe in ("layer", "norm")]
    records += [run(0.1, rule="rr", options={"solver": "exact"})]
    section = study_section("accuracy", records)
    assert len(section.tables) == 3  # one of each setting, and the gap to the other solver
    assert "n = 10,000 test images" in section.tables[0].caption
    assert "rr (solver=exact)" in str(section.tables[0])
    assert next(iter(section.figures)) == "sweep_resnet18_on_cifar100_observe_layer"


# --- every section, whatever it is given --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SECTIONS)
def test_sections_of_nothing_and_of_a_smoke_run(name: str) -> None:
    for records in ([], [failed()], smoke_records()):
        section = study_section(name, records, smoke=True)
        assert section.tables
        for table in section.tables:
            assert str(table)
            assert table.caption.endswith(SMOKE)
            assert "  " not in table.caption
            assert all(len(row) == len(table.columns) for row in table.rows)


def test_rows_rise_within_a_place() -> None:
    (table,) = study_tables("paired_gap", [run(0.1, rule=rule, sparsity=0.94) for rule in ("rr", "erk")])
    assert [row[1] for row in table.rows if row[0] == "CIFAR100"] == ["90 %", "92.5 %", "94 %", "95 %", "97.5 %"]


def test_tables_need_no_altair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    assert study_tables("main_results", seeds((0.1, 0.2), rule="rr"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acuracy", "did you mean accuracy.*package.module:callable"),
        ("reproduction.sections.accuracies:main_result", "did you mean main_results"),
        ("reproduction.section:x", "cannot import 'reproduction.section' for the section"),
        ("builtins:len", "'builtins:len' is no section"),
        (len, "returned int, not a Section"),
    ],
)
def test_an_unknown_section_is_refused(name: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sections.study_section((name,), [])


# --- the store's page ---------------------------------------------------------------------------------------------


TITLE = "The <script>alert(1)</script> transition"


@pytest.fixture(scope="module")
def studies() -> list[tuple[StudyEntry, list[Record]]]:
    records = [
        run(top1 + 0.01 * seed, rule=rule, sparsity=s, seed=seed)
        for rule, top1 in (("rr", 0.2), ("erk", 0.1), ("lamp", 0.15))
        for s in (0.94, 0.95)
        for seed in (0, 1)
    ]
    records.append(failed(rule="global"))
    ids = tuple(record.run_id for record in records)
    return [
        (
            StudyEntry("fine_transition", TITLE, (SECTIONS["fine_transition"],), "a & b", ids),
            records,
        ),
        (StudyEntry("layerwise-smoke", "Layers", (SECTIONS["layerwise"],), "", (*ids, "gone"), smoke=True), records),
    ]


def test_the_page(studies: list[tuple[StudyEntry, list[Record]]], tmp_path: Path) -> None:
    (path,) = write_store_report(studies, ["record x.json was <edited>"], tmp_path / "page.html")
    text = path.read_text()
    assert "<script>alert" not in text
    assert "The &lt;script&gt;alert(1)&lt;/script&gt; transition" in text
    assert "a &amp; b" in text
    assert "was &lt;edited&gt;" in text
    assert "InputError: &lt;b&gt;no weights&lt;/b&gt;" in text
    assert "Fine transition on ResNet18, top-1 accuracy, %".replace(" %", "\N{NO-BREAK SPACE}%") in text
    assert text.count("data-chart=") == 2
    assert "1 not there" in text
    assert SMOKE in text
    assert "abc123" in text
    assert not re.findall(r'(?:src|href)="(?!data:|#)', re.sub("<script>.*?</script>", "", text, flags=re.DOTALL))


def test_the_other_formats(studies: list[tuple[StudyEntry, list[Record]]], tmp_path: Path) -> None:
    written = write_store_report(studies, [], tmp_path / "out", list(FORMATS))
    names = {path.name for path in written}
    assert {"report.html", "runs.csv", "fine_transition.md", "fine_transition_2.tex", "layerwise-smoke.csv"} <= names
    assert {"fine_transition_transition_cifar100.png", "fine_transition_transition_cifar100.pdf"} <= names
    assert all(path.stat().st_size for path in written)
    with pytest.raises(InputError, match="unknown format 'docx'"):
        write_store_report(studies, [], tmp_path, ["docx"])


def test_an_empty_store(tmp_path: Path) -> None:
    (path,) = write_store_report([], [], tmp_path)
    assert "holds no study yet" in path.read_text()
    assert counts(StudyEntry("x", "X", ("accuracy",), "", ("a", "b")), []) == "0 of 2 runs done, 2 not there"


# --- studies/*.toml -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", PAPER, ids=lambda file: file.stem)
def test_every_study_is_sound(file: Path) -> None:
    study = read_study(file)
    assert study.title != study.name
    assert study.about
    for spec in study.specs:
        assert spec.weights in ("trained", f"{spec.model}_{spec.data}.safetensors")


def test_every_section_has_its_study() -> None:
    """What returns a Section is one, and some study names it: here, and of the library's."""
    modules = (accuracies, allocations, architectures, boundaries, choice, cost, detections)
    made = {
        f"{module.__name__}:{name}"
        for module in modules
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "") == module.__name__
        and getattr(value, "__annotations__", {}).get("return") == "Section"
    }
    assert set(SECTIONS.values()) == made | set(sections.SECTIONS)
    assert len(made) == 21


def test_studies_stand_on_each_other_and_repeat_nothing() -> None:
    """No study's own cells are all another's: such a study says runs_of, or is a section of the other."""
    own = {
        file.stem: {spec.model_dump_json() for spec in read_study(file).specs}
        for file in PAPER + OURS
        if "runs_of" not in tomllib.loads(file.read_text())
    }
    assert len(own) > 25
    assert [(a, b) for a, b in itertools.permutations(own, 2) if own[a] <= own[b]] == []
    summary = {spec.model_dump_json() for spec in read_study(FOLDER / "architecture_summary.toml").specs}
    assert summary == own["main_results"] | own["fine_transition"] | own["vgg16_bn"] | own["resnet34"]
