"""What notebooks show, and the page of a run: whole, quiet, and of names that nobody expects."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import repairability as rp
from repairability import _html
from repairability.cli import prune as verb
from repairability.detect import Transition
from repairability.pruning.result import Trial
from repairability.tables import Table
from test_cli import run

EVIL = "a<script>alert('$x$')</script>&amp;\"b'"
LAYERS = {EVIL: 0.9, "layer1.0.conv1": 0.95, "x" * 80: 0.5}
VOID = ("meta", "link", "line", "circle", "rect", "polyline", "br")


class Reader(HTMLParser):
    """Every element is closed where it must be; texts and attributes are kept."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID or tag in ("circle", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def checked(text: str) -> Reader:
    """Nothing in it runs, and nothing is fetched."""
    reader = Reader(text)
    assert reader.count("script") == 0
    for tag, attributes in reader.elements:
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href") in (None, "data:,")
        assert "src" not in attributes
        assert tag not in ("iframe", "object", "embed", "img")
    assert "url(" not in text
    assert "@import" not in text
    return reader


@pytest.fixture
def allocation() -> rp.Allocation:
    return rp.Allocation(LAYERS, dict.fromkeys(LAYERS, 1000), 3500, rule=EVIL, target=0.8, parameters=4000)


@pytest.fixture
def diagnosis() -> rp.Diagnosis:
    grid = [0.7, 0.9, 0.95]
    curves = {
        name: rp.Curves.on_grid(name, grid, {layer: [0.1, 0.5, 1.4 + i] for i, layer in enumerate(LAYERS)})
        for name in ("raw", "residual", "rr", "output")
    }
    return rp.Diagnosis(**curves, repair=EVIL, observe="layer", images=16, fingerprint="f" * 12)


def transition(method: str = "agreement") -> Transition:
    series: dict[str, Any] = {EVIL: [0.9, None, 0.2], f"KL {EVIL}": [0.1, None, 2.0], "erk": [1.0, 0.5, 0.1]}
    series |= {"KL erk": [0.0, 1.0, 2.0], "chance": [0.1, 0.1, 0.1], "beyond noise": [0.0, 0.1, 0.1]}
    if method == "cts":
        series = {"T": [0.1, 0.9, 0.2], "G": [0.0, -0.5, 0.1], "smoothed": [None, 0.2, 0.1]}
    return Transition(method, (0.9, 0.95, 0.99), series, (0.95, 0.99), (0.9, 0.99))


def test_an_allocation(allocation: rp.Allocation) -> None:
    reader = checked(allocation._repr_html_())
    assert reader.count("svg") == 1
    assert reader.count("circle") == len(LAYERS)
    assert EVIL in reader.texts  # in the table, as it is
    assert f"{EVIL}: 90.00 % pruned, 100 of 1,000 stay" in reader.texts  # in the chart, as a title
    assert "x" * 80 in reader.texts


def test_a_diagnosis(diagnosis: rp.Diagnosis) -> None:
    reader = checked(diagnosis._repr_html_())
    assert reader.count("svg") == 2  # rr, and output where it was measured
    assert reader.count("rect") == 2 * len(LAYERS) * 3
    fills = {attributes["fill"] for tag, attributes in reader.elements if tag == "rect"}
    assert len(fills) == 2  # below and above 1
    assert EVIL in reader.texts
    assert checked(diagnosis.rr._repr_html_()).count("rect") == len(LAYERS) * 3


@pytest.mark.parametrize("method", ["agreement", "cts"])
def test_a_transition(method: str) -> None:
    found = transition(method)
    reader = checked(found._repr_html_())
    assert reader.count("polyline") == 3
    assert reader.count("rect") == 2  # core and band
    assert found.advice in reader.texts


def test_values_that_are_alike() -> None:
    """No division by nothing: one layer, one sparsity, all zero, all one."""
    for value in (0.0, 1.0):
        checked(rp.Allocation({"a": value}, {"a": 10}, 10)._repr_html_())
        checked(rp.Curves.on_grid("rr", [0.9], {"a": [value]})._repr_html_())
    checked(_html.lines([0.9], {"a": [0.0]}, "title", "words"))
    checked(_html.lines([0.9, 0.95], {"a": [None, None]}, "title", "words"))
    checked(rp.Allocation({}, {}, 0)._repr_html_())


def test_a_doctor_and_layers(small_net: nn.Module) -> None:
    images = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    checkup = rp.doctor(small_net, images)
    assert checked(checkup._repr_html_()).count("table") == 2
    assert checked(rp.prunable_layers(small_net)._repr_html_()).count("table") == 1


def test_a_table_as_it_is() -> None:
    table = Table((EVIL, "b"), [(EVIL, EVIL), ("", "$\\alpha$")], title=EVIL, caption=EVIL)
    reader = checked(table._repr_html_())
    assert reader.texts.count(EVIL) == 5
    assert "$\\alpha$" in reader.texts


@pytest.fixture(scope="module")
def result() -> rp.PruneResult:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    net.add_module("<b>$x$", nn.Conv2d(8, 8, 3))
    net.add_module("last", nn.Conv2d(8, 4, 1))
    images = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return rp.prune(net, images, sparsity=0.8, config=rp.PruneConfig(count=32))


def test_a_result(result: rp.PruneResult) -> None:
    from dataclasses import replace

    reader = checked(result._repr_html_())
    assert reader.count("svg") == 3  # sparsity, rr, output
    assert "<b>$x$" in reader.texts
    assert result.table().caption in reader.texts
    tried = replace(result, trials=(Trial("erk", "magnitude", EVIL, 0.1, 0.9, 1.0, True),))
    assert checked(tried._repr_html_()).count("table") == 2


def test_the_page_of_a_run(result: rp.PruneResult, tmp_path: Path) -> None:
    from dataclasses import replace

    file = tmp_path / "page.html"
    tried = replace(result, trials=(Trial("erk", "magnitude", EVIL, 0.1, 0.9, 1.0, True),), notes=(EVIL,))
    tried.report(file, title=EVIL)
    text = file.read_text(encoding="utf-8")
    reader = checked(text)
    assert reader.texts.count(EVIL) >= 3  # title, heading, note
    sizes = result.sizes()
    assert f"{sizes['sparse']:,} bytes" in reader.texts
    assert "90.00 %" in reader.texts  # the same predictions
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert [unescape(words) for words in policy] == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert sizes == {
        name: result.save(tmp_path / name, format=name).size for name in ("dense", "sparse")
    }  # what save writes
    with pytest.raises(rp.InputError, match="it is a folder"):
        result.report(tmp_path)


def test_the_page_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "page.html"
    given = ["prune", "networks:small_net", "--data", "random:4", "-s", "0.8", "--recipe", "fast"]
    code, out, err = run(capsys, *given, "--report", str(file))
    assert (code, f"wrote {file}" in out) == (0, True), err
    assert "80.00 %" in file.read_text(encoding="utf-8")
    code, out, err = run(capsys, *given, "--report", str(tmp_path / "no" / "page.html"))
    assert (code, "there is no folder" in err) == (2, True)
    assert verb.LABELS["report"] in run(capsys, *given, "--report", str(file), "--dry-run")[1]
