"""Words that do harm elsewhere: advice to load what runs code, formulas in a spreadsheet, dollars in print."""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from repairability import InputError, create_model, load_data
from repairability._files import write_sealed
from repairability._imports import imported
from repairability.errors import first_line
from repairability.report import ReportData, write_report
from repairability.report.charts import named_charts
from repairability.report.documents import with_tables
from repairability.report.drawing import render
from repairability.report.markup import escape_latex, escape_markdown
from repairability.report.store import Studies
from repairability.tables import csv_text, read_csv
from repairability.training import TrainConfig, finetune
from test_cli_images import run
from test_report import result, synthetic
from test_report_studies import run as good_run

ADVICE = ("weights_only", "allow_pickle", "trust", "you have two options", "set to `false`", "torch.load", "unsafe")


class Payload:
    """What runs code where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return (Path.touch, (self.place,))


def whole_module(folder: Path) -> Path:
    torch.save(nn.Linear(2, 2), folder / "w.pt")
    return folder / "w.pt"


def payload(folder: Path) -> Path:
    torch.save({"a": Payload(folder / "ran")}, folder / "w.pt")
    return folder / "w.pt"


def bare_pickle(folder: Path) -> Path:
    (folder / "w.pkl").write_bytes(pickle.dumps(Payload(folder / "ran")))
    return folder / "w.pkl"


def old_format(folder: Path) -> Path:
    torch.save({"a": Payload(folder / "ran")}, folder / "w.pt", _use_new_zipfile_serialization=False)
    return folder / "w.pt"


def script(folder: Path) -> Path:
    with pytest.warns(match=".*"):
        torch.jit.script(nn.Linear(2, 2)).save(str(folder / "w.pt"))
    return folder / "w.pt"


WEIGHTS: dict[str, Callable[[Path], Path]] = {
    "a whole module": whole_module,
    "a payload": payload,
    "a bare pickle": bare_pickle,
    "torch's old format": old_format,
    "TorchScript": script,
}


def check_words(error: BaseException) -> None:
    """Neither in the sentence nor in what Python prints around it."""
    told = "".join(traceback.format_exception(error))
    told = "".join(line for line in told.splitlines(keepends=True) if not line.startswith("    "))  # no source lines
    for text in (str(error).lower(), told.lower()):
        assert not [words for words in ADVICE if words in text], text


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_that_might_run_code(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = WEIGHTS[kind](tmp_path)
    with pytest.raises(InputError, match="cannot read weights from") as caught:
        create_model("networks:small_net", weights=file)
    check_words(caught.value)
    assert len(str(caught.value)) < 400
    code, out, err = run(capsys, "layers", "networks:small_net", "--weights", str(file))
    assert (code, out) == (2, "")
    assert not [words for words in ADVICE if words in err.lower()], err
    assert not (tmp_path / "ran").exists()


def objects(folder: Path) -> Path:
    arrays = {"x_train": np.array([Payload(folder / "ran")], dtype=object)}
    np.savez(folder / "d.npz", allow_pickle=True, **arrays)
    return folder / "d.npz"


def pickled(folder: Path) -> Path:
    (folder / "d.npz").write_bytes(pickle.dumps({"x_train": Payload(folder / "ran")}))
    return folder / "d.npz"


@pytest.mark.parametrize("make", [objects, pickled])
def test_data_that_might_run_code(make: Callable[[Path], Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read .*might run code") as caught:
        load_data(f"npz:{make(tmp_path)}")
    check_words(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_state_of_training_that_might_run_code(tmp_path: Path) -> None:
    content = io.BytesIO()
    torch.save({"format": Payload(tmp_path / "ran")}, content)
    write_sealed(tmp_path / "net.partial", content.getvalue())
    model, config = create_model("networks:small_net"), TrainConfig(epochs=1, frozen=(), test_images=0)
    with pytest.raises(InputError, match="cannot continue from .*might run code.*--restart") as caught:
        finetune(model, load_data("random:10"), config=config, partial=tmp_path / "net.partial")
    check_words(caught.value)
    assert not (tmp_path / "ran").exists()


SAYINGS = [
    "Please pass the argument `trust_remote_code=True` to allow custom code to be run.",
    "Weights only load failed. This file can still be loaded, to do so you have two options",
    "x\nre-running `torch.load` with `weights_only` set to `False` will likely succeed",
    "Object arrays cannot be loaded when allow_pickle=False",
]


@pytest.mark.parametrize("saying", SAYINGS)
def test_advice_is_not_repeated(saying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "might run code" in first_line(ValueError(saying))
    name = f"advising_{SAYINGS.index(saying)}"
    (tmp_path / f"{name}.py").write_text(f"raise ValueError({saying!r})", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError) as caught:
        imported(f"{name}:model", "model")
    check_words(caught.value)


def test_other_words_are() -> None:
    assert first_line(ValueError("no such weights\nsecond line")) == "no such weights"
    assert first_line(ValueError("")) == "ValueError"


# --- spreadsheets -----------------------------------------------------------------------------------------------------

FORMULAS = [
    "=1+1",
    '=HYPERLINK("http://x","y")',
    "=cmd|' /C calc'!A0",
    "+SUM(A1)",
    "-A1",
    "-2+cmd|' /C calc'!A0",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "=",
    "'=1",
    "''=1",
    "'-1",
]
HARMLESS = [
    "",
    "plain",
    "a=b",
    "x-1",
    "-1.5",
    "+0.12",
    "-1e-05",
    "+0.12 ± 0.31",
    "-0.5 *",
    "-3.2 %",
    "'quoted'",
    "-",
    "1",
]


@pytest.mark.parametrize("text", FORMULAS, ids=ascii)
def test_no_cell_is_a_formula(text: str) -> None:
    written = csv_text([{text: text, "other": text}])
    for cell in (cell for row in read_raw(written) for cell in row if cell != "other"):
        assert cell == f"'{text}"
    assert read_csv(written) == [{text: text, "other": text}]


def read_raw(text: str) -> list[list[str]]:
    import csv

    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("text", HARMLESS, ids=ascii)
def test_others_are_as_they_were(text: str) -> None:
    assert read_raw(csv_text([{"a": text, "b": "x"}]))[1][0] == text
    assert read_csv(csv_text([{"a": text, "b": "x"}])) == [{"a": text, "b": "x"}]


@pytest.mark.parametrize("value", [-1.5, -1, -1e-300, float("-inf"), None, True, -0.0], ids=repr)
def test_numbers_stay_numbers(value: float | None) -> None:
    assert read_raw(csv_text([{"a": value, "b": 1}]))[1][0] == ("" if value is None else str(value))


def test_no_file_of_a_report_holds_one(tmp_path: Path) -> None:
    bad = "=HYPERLINK(1)"
    totals = {bad: 100, "b": 100}
    data = synthetic(totals, model=bad, title=bad, results=[result(bad, 0.9, 0, 0.5)], provenance={bad: bad})
    texts = [file.read_text(encoding="utf-8") for file in write_report(data, tmp_path / "out", ["csv"])]
    assert not [cell for text in texts for row in read_raw(text) for cell in row if cell.startswith(bad)]
    assert sum("'=HYPERLINK" in text for text in texts) > 3


def test_names_come_back_from_a_csv() -> None:
    totals = dict.fromkeys(["=a", "-b", "@c", "'=d", "e"], 100)
    data = synthetic(totals)
    for value in (data.diagnosis, data.allocations[0]):
        assert value is not None
        assert type(value).from_csv(value.to_csv()) == value


# --- print ------------------------------------------------------------------------------------------------------------

DOLLARS = ["$x$", "a$b", "$$", r"$\alpha", "x_1^2$", "$(signal)", "${x}", r"\$", "&lt;", "~~a~~"]


def dollars(name: str) -> ReportData:
    rows = [result(rule, 0.9, seed, 0.5) for rule in (name, "erk", "rr") for seed in (0, 1)]
    return synthetic({f"{name}.1": 100, f"{name}.2": 100}, model=name, data=name, results=rows)


@pytest.mark.parametrize("name", DOLLARS)
def test_dollars_in_print(name: str, tmp_path: Path) -> None:
    data = dollars(name)
    files = {file.name: file for file in write_report(data, tmp_path, ["md", "latex"])}
    svg = render(named_charts(data)["accuracy"], "svg").decode()
    escaped = name.replace("&", "&amp;").replace("<", "&lt;")
    assert f"accuracy, {escaped} on {escaped}" in svg
    assert f">{escaped}<" in svg  # in the legend
    assert escape_latex(name) in files["accuracy.tex"].read_text(encoding="utf-8")
    assert escape_markdown(name) in files["accuracy.md"].read_text(encoding="utf-8")
    for text in (escape_latex(name), escape_markdown(name)):
        assert "$" not in text.replace(r"\$", "")


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_dollars_in_pictures(kind: str) -> None:
    for chart in named_charts(dollars("$x$")).values():
        assert len(render(chart, kind)) > 1000


def test_dollars_in_a_document() -> None:
    record = good_run(0.1, rule="rr", data="npz:$x$ and $y$.npz")
    from repairability.experiments import StudyEntry

    studies = Studies([(StudyEntry("s", "$1", ("accuracy",), "", (record.run_id,)), [record])])
    text, outdated = with_tables("<!-- study s -->\n<!-- end -->", studies)
    assert outdated
    assert r"\$x\$ and \$y\$" in text
    assert with_tables(text, studies) == (text, [])
