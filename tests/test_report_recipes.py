"""Recipes side by side, bytes and milliseconds: what the tables, the chart and the page say of them."""

from __future__ import annotations

from typing import Any

import pytest

from repairability import InputError
from repairability.report import ReportData
from repairability.report.recipes import furthest_apart, recipe_words, recipes_chart, recipes_table, shipped_table
from repairability.report.sheets import named_csv, named_tables
from repairability.report.single import cards, report_page
from test_report import synthetic

DASH = "\N{EN DASH}"
TOP1 = {"alone": (0.9, 0.1), "paper": (0.95, 0.5), "strong <b>": (0.95, 0.94)}
RECIPES = [
    {"recipe": recipe, "sparsity": s, "seed": seed, "top1": top1 + 0.01 * seed, "n": 1000, "seconds": 1.0 + seed}
    for recipe, reached in TOP1.items()
    for s, top1 in zip((0.5, 0.95), reached, strict=True)
    for seed in (0, 1, 2)
]
SHIPPED: dict[str, Any] = {
    "recipe": "strong",
    "sparsity": 0.95,
    "parameters": 40_000,
    "threads": 1,
    "dense_bytes": 1000,
    "sparse_bytes": 100,
    "plain_ms": [2.0, 3.0, 2.5],
    "ms": [0.5, 0.4, 0.6],
}


def told(**changes: Any) -> ReportData:
    return synthetic(**{"recipes": RECIPES, "shipped": [SHIPPED], **changes})


def test_recipes_by_sparsity() -> None:
    table = recipes_table(told())
    assert table.columns == ("recipe", "50 %", "95 %", "seconds")
    assert table.rows[0] == ("alone", "91.00 ± 1.00", "11.00 ± 1.00", "2.00")
    assert "mean over 3 seeds" in table.caption
    assert "Dense: 78.12" in table.caption


def test_where_they_are_furthest_apart() -> None:
    apart = furthest_apart(told())
    assert apart is not None
    assert apart[0] == 0.95
    assert list(apart[1]) == ["strong <b>", "paper", "alone"]
    assert recipe_words(told()) == "At 95 %: strong <b> 95.00 %, paper 51.00 %, alone 11.00 %."
    one = [row for row in RECIPES if row["recipe"] == "paper"]
    assert recipe_words(told(recipes=one)) == "At 95 %: paper 51.00 %."
    elsewhere = [{**RECIPES[0], "sparsity": 0.3}, *one]
    assert recipe_words(told(recipes=elsewhere)) == "Recipes at different sparsities."
    assert furthest_apart(synthetic()) is None


def test_bytes_and_milliseconds() -> None:
    table = shipped_table(told())
    assert table.rows == [
        ("95 %", "1,000", "100", "10.0", f"2.500 (2.000{DASH}3.000)", f"0.500 (0.400{DASH}0.600)", "5.0")
    ]
    assert "40,000 parameters" in table.caption
    assert "A tiny network" in table.caption
    assert "tiny" not in shipped_table(told(shipped=[{**SHIPPED, "parameters": 11_000_000}])).caption
    bare = shipped_table(told(shipped=[{**SHIPPED, "ms": [], "plain_ms": []}]))
    assert bare.rows == [("95 %", "1,000", "100", "10.0")]
    assert "Milliseconds" not in bare.caption


def test_they_are_in_the_page_and_the_files() -> None:
    page = report_page(told())
    assert "What a recipe is worth" in page
    assert "What it weighs and takes" in page
    assert "strong <b>" not in page  # escaped, and in JSON by its code
    assert {"recipes", "shipped"} <= named_tables(told()).keys()
    assert named_csv(told())["shipped"].splitlines()[1].startswith("strong,0.95,1000,100,40000,1,2 3 2.5,")
    assert ("Recipe strong <b> at 95 %", "95.00 %", "paper 51.00 %, alone 11.00 %") in cards(told())
    assert recipes_chart(told()) is not None
    assert ReportData.from_json(told().to_json()) == told()


def test_absent_they_are_left_out() -> None:
    assert "recipe is worth" not in report_page(synthetic())
    assert not {"recipes", "shipped"} & named_tables(synthetic()).keys()
    assert recipes_chart(synthetic()) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipes": [{"recipe": "a"}]}, "recipes.0 lacks sparsity, seed, top1, n, seconds"),
        ({"recipes": [{**RECIPES[0], "top1": 2}]}, "recipes.0.top1"),
        ({"recipes": [{**RECIPES[0], "seconds": 0}]}, "recipes.0.seconds"),
        ({"shipped": [{**SHIPPED, "sparse_bytes": 0}]}, "shipped.0.sparse_bytes"),
        ({"shipped": [{**SHIPPED, "ms": [-1.0]}]}, "shipped.0.ms.0"),
        ({"shipped": [{**SHIPPED, "ms": [float("nan")]}]}, "shipped.0.ms.0"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        told(**changes)
