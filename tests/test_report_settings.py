"""The sections that compare settings and recipes: a line per combination, a column per sparsity."""

from __future__ import annotations

from typing import Any

import pytest

from repairability.experiments.record import Record
from repairability.experiments.spec import RunSpec
from test_report_studies import study_section, study_tables


def run(top1: float, seconds: float = 1.0, **settings: Any) -> Record:
    spec = RunSpec.read({"model": "resnet20", "data": "cifar10", **settings})
    result = {"top1": top1, "n": 100, "achieved": spec.sparsity, "global_sparsity": spec.sparsity, "dense_top1": 0.9}
    spent = {"repair": seconds, "evaluate": 100.0}
    return Record(
        run_id=str(hash((top1, str(settings)))), status="done", spec=spec, result=result, provenance={"seconds": spent}
    )


def test_a_line_for_each_combination_and_a_column_for_each_sparsity() -> None:
    records = [
        run(0.5, 1.0, score=score, repair=repair, sparsity=s, seed=seed)
        for score in ("magnitude", "second_order")
        for repair in ("bn", "reconstruct")
        for s in (0.9, 0.8)
        for seed in (0, 1)
    ]
    (table,) = study_tables("settings", records)
    assert table.columns == ("score", "repair", "80 %", "90 %", "seconds")
    assert [row[:2] for row in table.rows] == [
        (score, repair) for score in ("magnitude", "second_order") for repair in ("bn", "reconstruct")
    ]
    assert table.rows[0][2:] == ("50.00 ± 0.00", "50.00 ± 0.00", "1.0")


def test_means_over_seeds_missing_cells_and_what_the_seconds_count() -> None:
    records = [
        run(0.4, 1.0, repair="bn", sparsity=0.9, seed=0),
        run(0.6, 3.0, repair="bn", sparsity=0.9, seed=1),
        run(0.7, 9.0, repair="cr+bn", sparsity=0.8),
    ]
    (table,) = study_tables("settings", records)
    assert table.rows == [("bn", "", "50.00 ± 14.14", "2.0"), ("cr+bn", "70.00 ± 4.58*", "", "9.0")]
    assert "cells marked * are of one seed" in table.caption
    assert "rule rr" in table.caption.lower()
    assert "repair bn" not in table.caption.lower()


def test_networks_stand_apart_and_are_drawn() -> None:
    pytest.importorskip("altair")
    records = [run(0.5, model=model, repair=r) for model in ("resnet20", "resnet56") for r in ("bn", "cr+bn")]
    section = study_section("settings", records)
    assert [table.title for table in section.tables] == [
        f"{model} on CIFAR10: top-1 accuracy, %" for model in ("resnet20", "resnet56")
    ]
    assert list(section.figures) == ["settings_resnet20_on_cifar10", "settings_resnet56_on_cifar10"]
    draw = section.figures["settings_resnet20_on_cifar10"]
    assert draw() is not None
    assert {row["rule"] for row in draw.args[0].results} == {"bn", "cr+bn"}  # what the chart is of


def test_options_and_grids_are_told_shortly() -> None:
    records = [
        run(0.5, rule="rr", options={"solver": "exact"}, grid=[0.7, 0.8, 0.9]),
        run(0.5, rule="erk", conditioned_on="cr"),
    ]
    (table,) = study_tables("settings", records)
    assert table.columns[:4] == ("rule", "options", "conditioned_on", "grid")
    assert [row[:4] for row in table.rows] == [("rr", "solver=exact", "", "0.7 to 0.9"), ("erk", "", "cr", "paper")]


def test_recipes_are_called_by_their_names() -> None:
    alone = {"rule": "global", "options": {"over": "prunable"}, "repair": "none"}
    records = [
        run(0.7, recipe="strong"),
        run(0.5, recipe="paper"),
        run(0.1, **alone),
        run(0.6, recipe="strong", rule="erk"),
    ]
    (table,) = study_tables("recipes", records)
    assert [row[0] for row in table.rows] == ["strong", "paper", "magnitude alone", "erk, alternating, rectified"]
    assert list(study_section("recipes", records).figures) == ["recipes_resnet20_on_cifar10"]


def test_no_runs() -> None:
    (table,) = study_tables("settings", [])
    assert table.rows == []
    assert "No runs" in table.caption
