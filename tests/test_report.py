from __future__ import annotations

import builtins
import csv
import io
import json
import math
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repairability import Allocation, InputError
from repairability.curves import Curves
from repairability.diagnostics import Diagnosis
from repairability.errors import MissingExtraError
from repairability.report import FORMATS, ReportData, charts, write_report
from repairability.report import tables as report_tables
from repairability.report.charts import named_charts
from repairability.report.estimates import estimates, gaps
from repairability.report.markup import to_latex, to_markdown
from repairability.report.methods import ordered, styles
from repairability.report.page import script_json
from repairability.report.sheets import named_csv
from repairability.report.single import cards, contents, report_page
from repairability.tables import Table

TOTALS = {
    "layer1.0.conv1": 36_864,
    "layer2.0.conv1": 73_728,
    "layer2.0.downsample.0": 8_192,
    "layer3.0.conv2": 589_824,
    "layer4.1.conv2": 2_359_296,
}
PROJECTION = "layer2.0.downsample.0"
GRID = (0.7, 0.8, 0.9, 0.95)


def result(rule: str, sparsity: float, seed: int, top1: float, **more: Any) -> dict[str, Any]:
    same = {"achieved": sparsity, "global_sparsity": 0.99 * sparsity, "n": 1000, "repair": "cr+bn"}
    return {"rule": rule, "sparsity": sparsity, "seed": seed, "top1": top1, **same, **more}


def synthetic(totals: Mapping[str, int] = TOTALS, **changes: Any) -> ReportData:
    """A whole report of made-up numbers; `changes` replaces fields."""
    random = np.random.default_rng(0)
    raw = {layer: np.sort(random.uniform(0.1, 2, len(GRID))) for layer in totals}
    rr = {layer: np.sort(random.uniform(0.3, 1.05, len(GRID))) for layer in totals}
    curves = {"raw": raw, "residual": {x: raw[x] * rr[x] for x in totals}, "rr": rr}
    levels = {"rr": 0.85, "erk": 0.8, "lamp": 0.82, "uniform": 0.9}
    fields: dict[str, Any] = {
        "title": "ResNet-18 after pruning",
        "model": "resnet18",
        "data": "CIFAR-100",
        "dense": {"top1": 0.7812, "top1_bn": 0.7794, "n": 1000},
        "diagnosis": Diagnosis(
            **{name: Curves.on_grid(name, GRID, values) for name, values in curves.items()},
            repair="cr",
            observe="norm",
            images=128,
            fingerprint="abc123",
        ),
        "projections": [layer for layer in totals if "downsample" in layer],
        "allocations": [
            Allocation({x: min(0.99, level + 0.02 * i) for i, x in enumerate(totals)}, totals, 20_000_000, rule, target)
            for target in (0.9, 0.95)
            for rule, level in levels.items()
        ],
        "results": [
            result(rule, s, seed, round(base * (1.6 - 1.5 * s) + 0.01 * seed, 4), agreement=0.5, kl=0.25)
            for rule, base in {"erk": 0.6, "rr": 0.7, "lamp": 0.65, "mine": 0.4}.items()
            for s in (0.9, 0.925, 0.95)
            for seed in (0, 1, 2)
        ],
        "transition": {
            "method": "CTS",
            "sparsities": [0.94, 0.945, 0.95, 0.955],
            "series": {"CTS": [0.1, 0.5, 0.9, None], "agreement": [0.8, 0.6, 0.4, 0.3]},
            "core": [0.95, 0.95],
            "broad": [0.945, 0.955],
            "advice": "Between 94.5 % and 95.5 % choose rr.",
        },
        "provenance": {"commit": "0123abc", "hardware": "2 cores", "seeds": "0, 1, 2"},
    }
    return ReportData(**{**fields, **changes})


def _rows(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that the last layer of a chart draws."""
    found: list[dict[str, Any]] = spec["layer"][-1].get("data", spec.get("data"))["values"]
    return found


@pytest.fixture(scope="module")
def html() -> str:
    return report_page(synthetic())


def test_there_and_back() -> None:
    data = synthetic()
    assert ReportData.from_json(data.to_json()) == data
    bare = ReportData.from_json('{"title": "t", "model": "m", "data": "d"}')
    assert bare == ReportData("t", "m", "d")
    assert bare.to_dict()["results"] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not of type ReportData"),
        ('{"title": "t"}', "not of type ReportData.*'model'"),
        ('{"title": "t", "model": "m", "data": "d", "results": [{"rule": "rr"}]}', "results.0 lacks repair, sparsity"),
        ('{"title": "t", "model": "m", "data": "d", "results": [3]}', "results.0: .* dictionary, not 3"),
        (
            '{"title": "t", "model": "m", "data": "d", "dense": {"top1": 78.1, "n": 9}}',
            "dense.top1: .* not 78.1",
        ),
        ('{"title": "t", "model": "m", "data": "d", "transition": {"method": "x"}}', "transition lacks sparsities"),
    ],
)
def test_bad_json_is_answered(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ReportData.from_json(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"results": [result("rr", 0.9, 0, 0.5)] * 2}, "two results for rule 'rr', repair 'cr\\+bn'.*seed 0"),
        ({"results": [result("rr", 90, 0, 0.5)]}, "did you mean 0.9"),
        ({"results": [result("rr", 0.9, 0, math.nan)]}, "results.0.top1: .* finite number, not nan"),
        ({"results": [result("rr", 0.9, 0, 0.5, n=0)]}, "results.0.n: .* equal to 1, not 0"),
        (
            {"transition": {**(synthetic().transition or {}), "core": [0.9]}},
            "transition.core: .* not \\[0.9\\]",
        ),
        ({"transition": {**(synthetic().transition or {}), "series": {"J": [1.0]}}}, "'J' has 1 values for 4"),
        (
            {"transition": {**(synthetic().transition or {}), "series": {"J": [math.nan] * 4}}},
            "series.J.0: .* not nan",
        ),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        synthetic(**changes)


def test_seeds_give_the_sample_standard_deviation() -> None:
    data = synthetic(results=[result("rr", 0.95, seed, top1) for seed, top1 in enumerate((0.10, 0.12, 0.17))])
    table = data.table()
    assert table.columns == ("rule", "95 %")
    assert table.rows == [("rr", "13.00 ± 3.61")]  # sqrt((9 + 1 + 16) / 2) = 3.606
    for words in ("resnet18 on CIFAR-100", "n = 1,000", "mean over 3 seeds ± sample standard deviation", "78.12"):
        assert words in table.caption
    assert "binomial" not in table.caption


def test_one_seed_gives_the_binomial_error() -> None:
    table = synthetic(results=[result("rr", 0.925, 0, 0.2, n=10_000)]).table()
    assert table.rows == [("rr", "20.00 ± 0.40")]  # sqrt(0.2 * 0.8 / 10000) = 0.004
    assert "one seed ± binomial standard error" in table.caption
    assert "n = 10,000" in table.caption
    assert "deviation" not in table.caption


def test_a_mixture_says_which_is_which() -> None:
    runs = [
        result("erk", 0.9, 0, 0.5),
        result("rr", 0.9, 0, 0.5),
        result("rr", 0.9, 1, 0.5),
        result("rr", 0.95, 0, 0.5),
    ]
    table = synthetic(results=runs).table()
    assert table.rows == [("rr", "50.00 ± 0.00", "50.00 ± 1.58*"), ("erk", "50.00 ± 1.58*", "")]
    assert "cells marked * are of one seed, ± binomial standard error" in table.caption


def test_other_measures_and_repairs() -> None:
    runs = [result("rr", 0.9, 0, 0.5, kl=0.25), result("rr", 0.9, 0, 0.25, repair="none", kl=1.5)]
    data = synthetic(results=runs)
    assert [row[0] for row in data.table().rows] == ["rr, cr+bn", "rr, none"]
    assert report_tables.accuracy(data, "kl").rows == [("rr, cr+bn", "0.2500"), ("rr, none", "1.5000")]
    assert "no error known for kl" in report_tables.accuracy(data, "kl").caption
    assert {each.kind for points in estimates(data, "kl").values() for each in points.values()} == {"none"}
    assert report_tables.accuracy(data, "agreement").rows == []


def test_no_results_still_print() -> None:
    assert "no results" in str(ReportData("t", "m", "d"))


def test_gaps_are_paired_by_seed() -> None:
    rr, erk = (0.30, 0.34, 0.9), (0.29, 0.31)
    runs = [result("rr", 0.95, seed, p) for seed, p in enumerate(rr)]
    runs += [result("erk", 0.95, seed, p) for seed, p in enumerate(erk)]
    (gap,) = gaps(synthetic(results=runs)).values()
    assert gap.mean == pytest.approx(0.02)  # of 0.01 and 0.03; the third seed has no partner
    assert gap.error == pytest.approx(math.sqrt(2 * 0.01**2))
    (gap,) = gaps(synthetic(results=[result("rr", 0.95, 0, 0.5), result("erk", 0.95, 0, 0.2)])).values()
    assert gap.error == pytest.approx(math.sqrt(0.25 / 1000 + 0.16 / 1000))
    assert gaps(synthetic(results=[result("rr", 0.95, 0, 0.5), result("erk", 0.95, 1, 0.2)])) == {}


def test_methods_keep_their_order_and_colour() -> None:
    assert ordered(["mine", "lamp", "rr", "mine", "global"]) == ["global", "rr", "lamp", "mine"]
    assert styles(["rr", "mine"])["rr"] == styles(["rr"])["rr"]
    every = styles(["global", "uniform", "raw", "residual", "rr", "erk", "lamp", "mine"]).values()
    assert [len(set(values)) for values in zip(*every, strict=True)] == [8, 8]  # colours, shapes


def test_allocations_side_by_side() -> None:
    totals = {"a": 100, "p": 10}
    erk = Allocation({"a": 0.9, "p": 0.0}, totals, 120, "erk", 0.9)
    rr = Allocation({"a": 0.85, "p": 0.5}, totals, 120, "rr", 0.9)
    data = synthetic(allocations=[erk, rr, rr], projections=["p"])
    table = report_tables.allocations(data, 0.9)
    assert table.columns == ("layer", "total", "projection", "rr", "rr #2", "erk", "rr - erk", "rr #2 - erk")
    assert table.rows[0] == ("a", "100", "", "0.8500", "0.8500", "0.9000", "-0.0500", "-0.0500")
    assert table.rows[1] == ("p", "10", "yes", "0.5000", "0.5000", "0.0000", "+0.5000", "+0.5000")
    assert "erk 81.82 % (75.00 % of all)" in table.caption
    alone = report_tables.allocations(synthetic(allocations=[rr], projections=[]), 0.9)
    assert alone.columns == ("layer", "total", "rr")
    assert report_tables.allocation_rows(data, 0.9)[1]["rr - erk"] == 0.5


def test_an_allocation_without_target_counts_by_what_it_reached() -> None:
    data = synthetic(allocations=[Allocation({"a": 0.5}, {"a": 100}, 100)])
    assert report_tables.targets(data) == [0.5]
    assert report_tables.allocations(data, 0.5).columns == ("layer", "total", "projection", "unnamed")


def test_diagnosis_and_transition() -> None:
    data = synthetic()
    diagnosis, transition = report_tables.diagnosis(data), report_tables.transition(data)
    assert len(diagnosis.rows) == len(TOTALS) * len(GRID)
    assert diagnosis.columns == ("layer", "sparsity", "raw", "residual", "rr")
    assert transition.rows[0] == ("94 %", "0.1000", "0.8000", "")
    assert transition.rows[2] == ("95 %", "0.9000", "0.4000", "core")
    assert transition.rows[3] == ("95.5 %", "", "0.3000", "broad")
    assert "core 95 %, broad 94.5\N{EN DASH}95.5 %" in transition.caption


def test_heat_leaves_gaps_where_grids_differ() -> None:
    curves = [
        Curves(x, {"a": [0.5, 0.9], "b": [0.9]}, {"a": [1.0, 2.0], "b": [3.0]}) for x in ("raw", "residual", "rr")
    ]
    data = synthetic(diagnosis=Diagnosis(*curves, repair="cr", observe="norm", images=1, fingerprint=""))
    spec = charts.heatmap(data).to_dict()
    cells = [(row["layer"], row["sparsity"], row["value"]) for row in _rows(spec)]
    assert cells == [("a", 50, 1.0), ("a", 90, 2.0), ("b", 90, 3.0)]
    assert "most 3 (b at 90 %)" in spec["description"]
    assert "at 2 of 3 points, it does harm" in spec["description"]


def test_the_damage_at_the_output_is_shown_where_it_was_measured() -> None:
    plain = synthetic()
    assert charts.felt(plain) is None
    assert "output" not in charts.heatmaps(plain)
    assert "heatmap_output" not in report_page(plain)
    layers = {"a": [0.5, 0.9], "b": [0.5, 0.9]}
    curves = {x: Curves(x, layers, {"a": [0.1, 0.2], "b": [0.3, 2.0]}) for x in ("raw", "residual", "rr", "output")}
    data = synthetic(diagnosis=Diagnosis(**curves, repair="cr", observe="layer", images=1, fingerprint=""))
    assert list(charts.heatmaps(data)) == ["rr", "raw", "residual", "output"]
    line, tiles = charts.felt(data).to_dict(), charts.heatmap(data, "output").to_dict()
    assert "relative error of the network's output" in json.dumps(line)
    assert "output goes from 0.1 at 50 % to 0.2 at 90 %" in line["description"]
    assert "dotted: 1" not in line["description"]
    assert "output is least 0.1 (a at 50 %) and most 2 (b at 90 %)" in tiles["description"]
    page = report_page(data)
    assert "plot-felt" in page
    assert "plot-heatmap_output" in page
    assert report_tables.diagnosis(data).columns[-1] == "output"
    assert ReportData.from_json(data.to_json()).diagnosis == data.diagnosis


def test_markdown_is_escaped() -> None:
    text = to_markdown(Table(("a|b", "n"), [("x_y*<b>\n", "1 ± 2")], "T", "c"))
    assert text == "**T**\n\n| a\\|b | n |\n| --- | ---: |\n| x\\_y\\*\\<b\\> | 1 ± 2 |\n\nc\n"


def test_latex_is_escaped() -> None:
    text = to_latex(Table(("a&b", "95 %"), [(r"x_{y}\~^$#<", "1 ± 2")], "T", "50 %"), "x")
    assert r"a\&b & 95 \% \\" in text
    assert r"x\_\{y\}\textbackslash{}\textasciitilde{}\textasciicircum{}\$\#\textless{} & 1 $\pm$ 2 \\" in text
    assert r"\caption{T. 50 \%}" in text
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 1
    assert r"\begin{tabular}{lr}" in text
    long = to_latex(Table(("a", "b"), [("x", "1")] * 60))
    assert r"\begin{longtable}{lr}" in long
    assert long.count(r"x & 1 \\") == 60


class Reader(HTMLParser):
    """What the browser would load, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.headings: list[int] = []
        self.tables = 0
        self.ids: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "data", "action")]
        self.ids += [value or "" for key, value in attrs if key == "id"]
        self.tables += tag == "table"
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "script":
            self.inside = True
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self.inside:
            about, text = self.scripts[-1]
            self.scripts[-1] = (about, text + data)


def test_the_page_loads_nothing(html: str) -> None:
    read = Reader(html)
    assert all(link.startswith(("#", "data:")) for link in read.loads)
    ours = html
    for _, text in read.scripts:
        if "vegaEmbed=" in text:
            ours = ours.replace(text, "")
    assert len(ours) < 130_000
    assert "@import" not in ours
    assert "url(" not in ours
    assert "fetch(" not in ours
    assert not re.search(r"https?://", ours)
    assert "default-src 'none'" in ours


def test_vega_is_there_once(html: str) -> None:
    assert sum("vegaEmbed=" in text for _, text in Reader(html).scripts) == 1
    assert html.count("vegaEmbed=") == 1


def test_headings_and_ids_are_in_order(html: str) -> None:
    read = Reader(html)
    assert read.headings[0] == 1
    assert read.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(read.headings, read.headings[1:], strict=False))
    assert len(read.ids) == len(set(read.ids))


def test_nothing_breaks_out_of_the_page() -> None:
    bad = '</script><script>alert(1)</script><b title="x">&amp;'
    data = synthetic(
        title=bad, model=bad, provenance={bad: bad}, allocations=[Allocation({bad: 0.5}, {bad: 9}, 9, bad, 0.5)]
    )
    text = report_page(data)
    read = Reader(text)
    assert len(read.scripts) == 3
    assert "<script>alert" not in text
    assert '<b title="x">' not in text
    drawn = json.loads(next(body for about, body in read.scripts if about.get("type") == "application/json"))
    assert [bad] == [row["layer"] for row in _rows(drawn["charts"]["levels_50"])]
    assert json.loads(script_json({"a": [bad, math.nan, math.inf]})) == {"a": [bad, None, None]}


def test_absent_parts_are_left_out() -> None:
    text = report_page(ReportData("t", "m", "d"))
    assert Reader(text).tables == 0
    assert not [name for name in Reader(text).ids if name.startswith("plot-")]
    alone = synthetic(results=(), allocations=(), transition=None, provenance={}, dense=None)
    assert 'id="diagnosis"' in report_page(alone)


def test_cards(html: str) -> None:
    found = {label: (number, note) for label, number, note in cards(synthetic())}
    assert found["Dense top-1"][0] == "78.12 %"
    assert found["Best at 95 %"][1].startswith("rr; next lamp")
    assert found["Layers"] == ("5", "1 of them projections")
    assert found["Repair"][0] == "cr+bn"
    tied = synthetic(results=[result(rule, 0.9, 0, 0.5) for rule in ("erk", "rr")])
    assert next(note for label, _, note in cards(tied) if label == "Best at 90 %") == "rr = erk"
    many = synthetic(results=[result("rr", 0.8 + 0.01 * i, 0, 0.5) for i in range(20)])
    shown = [label for label, _, _ in cards(many) if label.startswith("Best")]
    assert len(shown) == 6
    assert (shown[0], shown[-1]) == ("Best at 80 %", "Best at 99 %")
    assert "78.12 %" in html


def test_every_format_writes_whole_files(tmp_path: Path) -> None:
    data = synthetic()
    files = write_report(data, tmp_path / "out", list(FORMATS))
    names = {file.name for file in files}
    assert {"report.html", "accuracy.md", "allocations_95.csv", "accuracy.tex", "heatmap.png", "gap.pdf"} <= names
    assert {"layerwise_90.png", "transition.pdf", "provenance.md", "diagnosis.csv", "results.csv", "kl.tex"} <= names
    assert {file.name for file in (tmp_path / "out").iterdir()} == names  # no leftovers
    ends = {".html": b"</html>", ".png": b"IEND\xaeB`\x82", ".pdf": b"%%EOF\n"}
    for file in files:
        content = file.read_bytes()
        assert content.rstrip() if file.suffix == ".html" else content
        assert content.rstrip(b"\n").endswith(ends.get(file.suffix, b"").rstrip(b"\n"))
    assert (tmp_path / "out" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "out" / "accuracy.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    first = next(iter(next(iter(estimates(data).values())).values()))
    assert float(rows[0]["top1"]) == first.mean  # the same bits
    assert rows[0]["error_kind"] == "std"


def test_where_files_go(tmp_path: Path) -> None:
    data = synthetic(diagnosis=None, allocations=(), transition=None)
    files = write_report(data, tmp_path / "deep" / "page.html", ["html", "md"])
    assert files[0] == tmp_path / "deep" / "page.html"
    assert {file.parent for file in files[1:]} == {tmp_path / "deep" / "page"}
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        write_report(data, tmp_path / "taken", ["md"])


def test_the_same_data_gives_the_same_bytes() -> None:
    data = synthetic(allocations=synthetic().allocations[:4])  # one target
    for name in ("html", "svg", "png", "pdf"):
        assert FORMATS[name](contents(data)) == FORMATS[name](contents(data))


def test_an_unknown_format_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown format 'htm'; did you mean html"):
        write_report(synthetic(), tmp_path / "out", ["md", "htm"])
    assert not (tmp_path / "out").exists()


def test_charts_need_what_they_show() -> None:
    assert list(named_charts(ReportData("t", "m", "d"))) == []
    assert set(named_charts(synthetic(diagnosis=None, transition=None, allocations=()))) == {"accuracy", "gap"}


@pytest.mark.parametrize(("package", "name"), [("jinja2", "html"), ("altair", "html"), ("vl_convert", "png")])
def test_a_missing_package_names_its_extra(package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(wanted: str, *others: Any) -> Any:
        if wanted.split(".")[0] == package:
            raise ModuleNotFoundError(wanted)
        return real(wanted, *others)

    monkeypatch.setattr(builtins, "__import__", refuse)
    distribution = package.replace("vl_convert", "vl-convert-python")
    with pytest.raises(MissingExtraError, match=rf"{distribution} is not installed.*repairability\[report\]"):
        FORMATS[name](contents(synthetic()))


def test_csv_of_odd_names() -> None:
    text = named_csv(synthetic(provenance={"a,b": 'c "d"\ne'}))["provenance"]
    assert list(csv.reader(io.StringIO(text))) == [["what", "value"], ["a,b", 'c "d"\ne']]
