"""JSON and CSV of a diagnosis, an allocation or a report that somebody edited: one sentence, and never a traceback."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repairability import Allocation, Curves, Diagnosis, InputError
from repairability.report import ReportData
from repairability.tables import Tidy, Value, csv_text, read_csv
from test_cli_images import run

GRID = [0.5, 0.9]


def diagnosis() -> Diagnosis:
    raw, residual, rr = (
        Curves.on_grid(measure, GRID, {"a": [0.1, 0.2], "b": [0.3, 0.4]}) for measure in ("raw", "residual", "rr")
    )
    return Diagnosis(raw, residual, rr, repair="cr", observe="layer", images=8, fingerprint="f")


def allocation() -> Allocation:
    return Allocation({"a": 0.5, "b": 0.25}, {"a": 10, "b": 20}, 50, "erk", 0.4, 60)


def report() -> ReportData:
    row = {"rule": "rr", "repair": "cr", "sparsity": 0.9, "achieved": 0.9, "global_sparsity": 0.8, "seed": 0}
    dense = {"top1": 0.5, "n": 10}
    return ReportData("t", "m", "d", dense, diagnosis(), (), (allocation(),), ({**row, "top1": 0.5, "n": 10},))


GOOD: dict[type[Value], Callable[[], Value]] = {Diagnosis: diagnosis, Allocation: allocation, ReportData: report}
Edit = Callable[[dict[str, Any]], object]


def said(*path: Any, value: Any) -> Edit:
    """Something else at this place."""

    def edit(content: dict[str, Any]) -> None:
        place: Any = content
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return edit


def lost(*path: Any) -> Edit:
    def edit(content: dict[str, Any]) -> None:
        place: Any = content
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return edit


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


EDITS: list[tuple[type[Value], Edit, str]] = [
    # layers
    (Diagnosis, lambda x: x["rr"].append(x["rr"][0]), "layer 'a' comes twice"),
    (Diagnosis, lambda x: x["raw"].append(x["raw"][1]), "layer 'b' comes twice"),
    (Diagnosis, lambda x: x["raw"].pop(), "raw was measured on other layers"),
    (Diagnosis, lambda x: x["residual"].reverse(), "residual was measured on other layers"),
    (Diagnosis, lambda x: [x[m].clear() for m in ("raw", "residual", "rr")], "at least one layer"),
    (Diagnosis, said("rr", 0, "name", value=3), "a layer has a name of .* not 3"),
    (Diagnosis, said("rr", 0, "name", value=["a"]), "a layer has a name"),
    (Diagnosis, said("rr", 0, "name", value="x" * 10_000), "a layer has a name of at most 1,000"),
    (Diagnosis, said("rr", 0, value="a"), "not of type Diagnosis"),
    (Diagnosis, said("rr", value={}), "not of type Diagnosis|at least one layer"),
    (Diagnosis, said("rr", value=7), "not of type Diagnosis"),
    # grids and values
    (Diagnosis, said("raw", 0, "grid", value=[0.5, 0.8]), "at other sparsities"),
    (Diagnosis, said("raw", 0, "grid", value=[0.9, 0.5]), "must rise"),
    (Diagnosis, said("raw", 0, "grid", value=[[0.5], [0.9, 1]]), "not of type Diagnosis"),
    (Diagnosis, said("raw", 0, "values", value=[[0.1, 0.2]]), "needs as many values"),
    (Diagnosis, said("raw", 0, "values", value=[0.1]), "needs as many values"),
    (Diagnosis, said("raw", 0, "values", value=["much", 0.2]), "not of type Diagnosis"),
    (Diagnosis, said("raw", 0, "values", value=[math.nan, 0.2]), "holds nan or inf"),
    (Diagnosis, said("raw", 0, "values", value=[10**400, 0.2]), "not of type Diagnosis|holds nan or inf"),
    (Diagnosis, said("raw", 0, "values", value=nested(30)), "needs as many values|not of type Diagnosis"),
    # counts
    (Diagnosis, said("images", value=1.5), "images must be a whole number, not 1.5"),
    (Diagnosis, said("images", value=-3), "images must be at least 0"),
    (Diagnosis, said("images", value=math.inf), "images must be a whole number"),
    (Diagnosis, said("images", value=10**30), "images must be at most"),
    (Diagnosis, said("images", value=True), "images must be a whole number, not True"),
    (Diagnosis, lost("images"), "not of type Diagnosis: KeyError"),
    (Diagnosis, lost("rr"), "not of type Diagnosis: KeyError"),
    # allocations
    (Allocation, lambda x: x["layers"].append(x["layers"][0]), "layer 'a' comes twice"),
    (Allocation, said("layers", 0, "total", value=10.5), "the weights of layer 'a' must be a whole number, not 10.5"),
    (Allocation, said("layers", 0, "total", value=10**400), "must be at most"),
    (Allocation, said("layers", 0, "total", value=-1), "must be at least 0"),
    (Allocation, said("layers", 0, "total", value="many"), "must be a whole number, not 'many'"),
    (Allocation, said("layers", 0, "sparsity", value=10**400), "must be between 0 and 1"),
    (Allocation, said("layers", 0, "sparsity", value=math.nan), "must be between 0 and 1"),
    (Allocation, said("layers", 0, "sparsity", value="0.5"), "must be a number between 0 and 1"),
    (Allocation, said("layers", 0, "name", value=None), "a layer has a name"),
    (Allocation, said("n_all", value=1e400), "n_all must be a whole number"),
    (Allocation, said("n_all", value=3), "is less than the 30 prunable weights"),
    (Allocation, said("target", value=math.nan), "the target must be between 0 and 1"),
    (Allocation, said("target", value=95), "did you mean 0.95"),
    (Allocation, said("target", value=[0.5]), "the target must be a number"),
    (Allocation, said("layers", value=None), "not of type Allocation"),
    (Allocation, said("parameters", value="x"), "parameters must be a whole number"),
    # reports
    (ReportData, said("allocations", 0, "layers", value=[]), "holds no layer|no layers"),
    (ReportData, said("allocations", value=7), "not of type ReportData"),
    (ReportData, said("results", 0, "top1", value=2), "top1"),
    (ReportData, said("results", 0, "n", value=0), "n: "),
    (ReportData, said("results", 0, "seed", value=nested(40)), "seed"),
    (ReportData, lambda x: x["results"].append(x["results"][0]), "two results for rule"),
    (ReportData, said("dense", "top1", value="x" * 100_000), "dense.top1"),
    (ReportData, said("diagnosis", "rr", value=[]), "at least one layer|other layers"),
]


@pytest.mark.parametrize(("kind", "edit", "message"), EDITS, ids=[f"{i} {x[2]}" for i, x in enumerate(EDITS)])
def test_edited_json(
    kind: type[Value], edit: Edit, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(GOOD[kind]().to_json())
    edit(content)
    text = json.dumps(content)
    with pytest.raises(InputError, match=message) as caught:
        kind.from_json(text)
    assert len(str(caught.value)) < 700
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    curves = ("allocate", "digits", "-s", "0.9", "-r", "rr", "--curves", str(tmp_path / "x.json"))
    verbs = {Diagnosis: [curves], ReportData: [("report", str(tmp_path / "x.json"), "--out", str(tmp_path / "out"))]}
    for verb in verbs.get(kind, []):
        code, out, err = run(capsys, *verb)
        assert (code, out, err.count("error: "), "Traceback" in err) == (2, "", 1, False), err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json"]


TEXTS = [
    ("", "is not JSON"),
    ("\0", "is not JSON"),
    ("[" * 100_000, "nested more than 64 deep"),
    ("[" * 100_000 + "]" * 100_000, "nested more than 64 deep"),
    ('{"rr":' * 100_000, "nested more than 64 deep"),
    ('{"rr": [], "rr": []}', "says 'rr' twice"),
    ("{" + ",".join(f'"{i}": 0' for i in range(50_000)) + ',"0": 1}', "says '0' twice"),
    ('{"title": "\\ud800", "model": "", "data": ""}', "half of a character"),
    (f'{{"images": {"1" * 5000}}}', "too many digits"),
    ("[1, 2]", "not of type|lacks|KeyError"),
    ("7", "not of type"),
    ("null", "not of type"),
]


@pytest.mark.parametrize(("text", "message"), TEXTS, ids=[f"{i} {x[1]}" for i, x in enumerate(TEXTS)])
@pytest.mark.parametrize("verb", ["allocate", "prune", "report"])
def test_a_file_that_is_none(
    verb: str, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    file = tmp_path / "x.json"
    file.write_text(text, encoding="utf-8")
    with_curves = ("digits", "-s", "0.9", "-r", "rr", "--curves", str(file))
    commands = {
        "allocate": ("allocate", *with_curves),
        "prune": ("prune", *with_curves, "--data", "digits"),
        "report": ("report", str(file), "--out", str(tmp_path / "out")),
    }
    code, out, err = run(capsys, *commands[verb])
    assert (code, out, "Traceback" in err) == (2, "", False), err
    assert re.search(message, err), err
    assert len(err) < 1000


@pytest.mark.parametrize("option", ["pinned=" + "[" * 100_000, "pinned=" + "1" * 9_000, 'pinned={"a":1,"a":2}'])
def test_options_that_are_no_json(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "allocate", "digits", "-s", "0.9", "-r", "forced", "--option", option)
    assert (code, out, "Traceback" in err) == (2, "", False), err[-2000:]


# --- CSV --------------------------------------------------------------------------------------------------------------

CSVS: list[tuple[type[Tidy], Callable[[str], str], str]] = [
    (Diagnosis, lambda text: text + text.splitlines()[1] + "\n", "a grid must rise"),
    (Diagnosis, lambda text: text + "a\n", "row 5 of this CSV has 1 cells for 9 columns"),
    (Diagnosis, lambda text: text.replace("\n", ",more\n", 2).replace(",more\n", "\n", 1), "has 10 cells"),
    (Diagnosis, lambda text: text.replace("residual", "raw", 1), "has the column 'raw' twice"),
    (Diagnosis, lambda text: text.replace("layer,", "lair,", 1), "no Diagnosis: KeyError"),
    (Diagnosis, lambda text: text.replace("0.5,", "half,", 1), "no Diagnosis"),
    (Diagnosis, lambda text: text.replace("0.5,", "nan,", 1), "must rise"),
    (Diagnosis, lambda text: text.replace("0.1,", "inf,", 1), "holds nan or inf"),
    (Diagnosis, lambda text: text.replace(",8,", ",9,", 1), "several diagnoses"),
    (Diagnosis, lambda text: text.replace(",f\n", ",g\n", 1), "several diagnoses"),
    (Diagnosis, lambda text: text.splitlines()[0], "there are none"),
    (Diagnosis, lambda text: "", "there are none"),
    (Diagnosis, lambda text: "\n\n\n", "there are none"),
    (Diagnosis, lambda text: text + '"' + "x" * 200_000, "is not CSV|has 1 cells"),
    (Diagnosis, lambda text: text + "a,b\rc\0,d\n", "cells for 9 columns|is not CSV"),
    (Diagnosis, lambda text: "a,b,a\n" + text, "column 'a' twice"),
    (Diagnosis, lambda text: ",b,\n1,2,3\n", "column '' twice"),
    (Diagnosis, lambda text: ",".join(map(str, range(50_000))) + ",0\n", "column '0' twice"),
    (Allocation, lambda text: text + text.splitlines()[1] + "\n", "layer 'a' comes twice"),
    (Allocation, lambda text: text.replace(",10,", ",10.5,", 1), "must be a whole number, not '10.5'"),
    (Allocation, lambda text: text.replace(",10,", f",{'9' * 50},", 1), "must be a whole number"),
    (Allocation, lambda text: text.replace("0.4", "nan"), "the target must be between"),
    (Allocation, lambda text: text.replace("erk", "rr", 1), "several allocations"),
    (Allocation, lambda text: text.replace("name", "layer", 1), "no Allocation: KeyError"),
]


@pytest.mark.parametrize(("kind", "edit", "message"), CSVS, ids=[f"{i} {x[2]}" for i, x in enumerate(CSVS)])
def test_edited_csv(kind: type[Tidy], edit: Callable[[str], str], message: str) -> None:
    good = GOOD[kind]()
    assert isinstance(good, Tidy)
    text = edit(good.to_csv())
    assert text != good.to_csv()
    with pytest.raises(InputError, match=message) as caught:
        kind.from_csv(text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("kind", [Diagnosis, Allocation])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
def test_what_spreadsheets_write_is_read(kind: type[Tidy], end: str) -> None:
    good = GOOD[kind]()
    assert isinstance(good, Tidy)
    assert kind.from_csv("\ufeff" + good.to_csv().replace("\n", end) + end) == good


def test_rows_come_back_as_they_were() -> None:
    rows = [{"a": 'x,"y"\nz', "b": "1"}, {"a": "", "b": "ü\r\n"}]
    assert read_csv(csv_text(rows)) == rows
