from __future__ import annotations

import csv
import inspect
import json
import math
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from networks import small_net
from repairability import Allocation, Curves, Diagnosis, allocate, create_model
from repairability.cli import main
from repairability.cli.allocate import DEFAULT
from repairability.cli.output import json_text
from repairability.tables import Table

NET = "networks:small_net"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(exit_.value.code or 0), out, err


def test_layers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "layers", "resnet18")
    assert code == 0
    assert "19 layers, 11,157,504 prunable of 11,166,912 weights" in out
    code, out, _ = run(capsys, "layers", NET, "--json", "--types", "conv,linear", "--skip", "")
    assert [row["name"] for row in json.loads(out)["layers"]] == ["0", "2", "4", "7"]


def test_allocate_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "allocate", NET, "--rule", "erk", "--sparsity", "0.95", "--json")
    data = json.loads(out)
    assert code == 0
    assert {"rule", "target", "sparsity", "global_sparsity", "layers"} <= data.keys()
    assert data["layers"][0].keys() == {"name", "total", "pruned", "sparsity"}
    assert Allocation.from_dict(data) == allocate(create_model(NET), sparsity=0.95, rule="erk")


def test_what_a_model_prints_is_no_part_of_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = "from networks import small_net\ndef net():\n    print('hello')\n    return small_net()\n"
    (tmp_path / "talking.py").write_text(text, encoding="utf-8")
    code, out, err = run(capsys, "allocate", "talking:net", "--rule", "erk", "-s", "0.9", "--json")
    assert (code, json.loads(out)["rule"], "hello" in err) == (0, "erk", True)


def test_allocate_writes_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.csv"
    run(capsys, "allocate", NET, "-s", "0.9", "-r", "lamp", "--csv", str(file))
    assert Allocation.from_csv(file.read_text()) == allocate(create_model(NET), sparsity=0.9, rule="lamp")
    run(capsys, "allocate", NET, "-s", "0.9", "--compare", "erk,lamp", "--csv", str(file))
    assert [row["rule"] for row in csv.DictReader(file.open())] == ["erk", "erk", "lamp", "lamp"]


def test_the_rule_unsaid_is_the_library_s() -> None:
    assert inspect.signature(allocate).parameters["rule"].default == DEFAULT


def test_compare_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "allocate", NET, "-s", "0.9", "--compare", "erk, lamp,uniform")
    assert out.splitlines()[0].split() == ["layer", "total", "erk", "lamp", "uniform"]
    assert "over all weights" in out
    _, out, _ = run(capsys, "allocate", NET, "-s", "0.9", "--compare", "erk,lamp", "--json")
    assert [x["rule"] for x in json.loads(out)["allocations"]] == ["erk", "lamp"]


def test_forced_and_measured_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(
        capsys,
        "allocate",
        NET,
        "-s",
        "0.9",
        "-r",
        "forced",
        "--option",
        'pinned={"4": 0.7}',
        "--option",
        "rest=uniform",
        "--json",
    )
    assert json.loads(out)["layers"][1]["sparsity"] == 0.7
    curves = tmp_path / "rr.json"
    on_grid = {
        measure: Curves.on_grid(measure, [0.7, 0.95], {"2": [0.1, 0.2], "4": [0.1, 0.9]})
        for measure in ("raw", "residual", "rr")
    }
    curves.write_text(Diagnosis(**on_grid, repair="cr", observe="layer", images=1, fingerprint="x").to_json())
    _, out, _ = run(
        capsys, "allocate", NET, "-s", "0.9", "-r", "rr", "--curves", str(curves), "--option", "solver=exact", "--json"
    )
    assert [x["sparsity"] for x in json.loads(out)["layers"]] == [0.95, 0.7]


def test_in_a_comparison_an_option_goes_to_the_rules_that_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--compare", "erk,global", "--option", "floor=0", "--option", "over=prunable")
    code, out, err = run(capsys, "allocate", NET, "-s", "0.9", *given, "--json")
    assert code == 0, err
    model = create_model(NET)
    plans = [allocate(model, sparsity=0.9, floor=0.0), allocate(model, sparsity=0.9, rule="global", over="prunable")]
    assert [Allocation.from_dict(plan) for plan in json.loads(out)["allocations"]] == plans


def test_a_network_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The console script's own folder heads its path, not the working directory."""
    (tmp_path / "nets_of_mine.py").write_text("from torch import nn\n\ndef net():\n    return nn.Conv2d(3, 8, 3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    code, out, err = run(capsys, "layers", "nets_of_mine:net", "--skip", "", "--json")
    assert code == 0, err
    assert json.loads(out)["prunable"] == 3 * 8 * 9


def test_json_is_strict() -> None:
    text = json_text({"a": [1.0, math.inf], "b": {"c": math.nan, "d": (Path("e"),)}, "t": Table(("x",), [("y",)])})
    table = {"columns": ["x"], "rows": [["y"]], "title": "", "caption": ""}
    assert json.loads(text) == {"a": [1.0, None], "b": {"c": None, "d": ["e"]}, "t": table}


def test_weights_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file(create_model(NET, seed=8).state_dict(), tmp_path / "w.safetensors")
    _, given, _ = run(
        capsys, "allocate", NET, "-s", "0.9", "-r", "lamp", "--weights", str(tmp_path / "w.safetensors"), "--json"
    )
    _, seeded, _ = run(capsys, "allocate", NET, "-s", "0.9", "-r", "lamp", "--seed", "8", "--json")
    _, other, _ = run(capsys, "allocate", NET, "-s", "0.9", "-r", "lamp", "--seed", "9", "--json")
    assert given == seeded != other


@pytest.fixture
def nan_weights(tmp_path: Path) -> str:
    state = small_net().state_dict()
    state["2.weight"][0] = torch.nan
    save_file(state, tmp_path / "nan.safetensors")
    return str(tmp_path / "nan.safetensors")


BAD: list[tuple[list[str], str]] = [
    (["allocate", NET, "-s", "1.2"], "sparsity must be between 0 and 1 (pruned / total), not 1.2"),
    (["allocate", NET, "-s", "nan"], "not nan"),
    (["allocate", NET, "-s", "-0.5"], "not -0.5"),
    (["allocate", NET, "-s", "95"], "did you mean 0.95?"),
    (["allocate", NET, "-s", "0.9", "-r", "lmap"], "unknown rule 'lmap'; did you mean lamp?"),
    (["allocate", NET, "-s", "0.9", "--compare", "erk,lmap"], "unknown rule 'lmap'"),
    (["allocate", NET, "-s", "0.9", "-r", "rr"], "needs measured curves"),
    (["allocate", NET, "-s", "0.99", "-r", "erk"], "ERK cannot reach sparsity 99.00 %"),
    (["allocate", NET, "-s", "0.9", "-r", "forced"], "needs pinned layers"),
    (["allocate", NET, "-s", "0.9", "-r", "forced", "--option", "pinned=0.7"], "such as pinned={'*downsample*': 0.7}"),
    (["allocate", NET, "-s", "0.9", "-r", "forced", "--option", 'pinned={"4": "x"}'], "must be a number between"),
    (
        ["allocate", NET, "-s", "0.9", "--option", "floor"],
        "--option takes NAME=VALUE, such as solver=exact, not 'floor'",
    ),
    (["allocate", NET, "-s", "0.9", "--option", "cap=1", "--option", "cap=0.5"], "--option cap is given twice"),
    (["allocate", NET, "-s", "0.9", "--option", "flor=0"], "takes no option 'flor'; it takes: cap, floor"),
    (
        ["allocate", NET, "-s", "0.9", "--option", "floor=NaN"],
        "floor must be between 0 and 1 (pruned / total), not nan",
    ),
    (["allocate", NET, "-s", "0.9", "--option", "floor=low"], "floor must be a number between 0 and 1, not 'low'"),
    (["allocate", NET, "-s", "0.9", "--compare", "erk,lamp", "--option", "over=all"], "takes no option 'over'"),
    (["allocate", NET, "-s", "0.9", "-r", "rr", "--curves", "missing.json"], "cannot read missing.json"),
    (
        ["allocate", NET, "-s", "0.9", "--compare", "erk,lamp", "-r", "uniform"],
        "--compare names all its rules: leave --rule uniform out, or say --compare erk,lamp,uniform",
    ),
    (["allocate", NET, "-s", "0.9", "-r", "rr", "--curves", "./out.csv"], "--csv and --curves are the same, out.csv"),
    (["layers", NET, "--weights", "imagenet"], f"for its networks (resnet18); '{NET}' is what a callable makes"),
    (["layers", "resnet20", "--weights", "imagenet"], "'resnet20' is a network of ours: give a file of weights"),
    (["layers", "networks:linear_net", "--types", "conv"], "has no layer of type conv: nothing to prune"),
    (["layers", "resnet81"], "unknown model 'resnet81'; did you mean"),
    (["layers", NET, "--weights", "missing.th"], "no weights file at missing.th"),
    (["layers", NET, "--num-classes", "0"], "num_classes must be at least 1"),
    (["layers", NET, "--only", "fc"], "unknown layer or pattern 'fc'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_bad_input_ends_in_one_line_and_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    extra = ["--csv", "out.csv"] if arguments[0] == "allocate" else []
    code, out, err = run(capsys, *arguments, *extra)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert os.listdir(tmp_path) == []


def test_weights_with_nan(nan_weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    for rule in ("erk", "global"):
        code, out, err = run(capsys, "allocate", NET, "-s", "0.9", "-r", rule, "--weights", nan_weights)
        assert (code, out) == (2, "")
        assert "the weight of layer '2' holds nan or inf" in err


def test_usage_errors_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "allocate", NET)[0] == 2
    assert run(capsys, "allocate", NET, "-s", "much")[0] == 2
    code, out, _ = run(capsys, "allocate", "--help")
    assert code == 0
    assert "repairability allocate resnet18" in out
