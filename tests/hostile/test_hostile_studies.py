"""Studies that lie, or that cannot be: refused when they are read, before the first run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from repairability import InputError
from repairability.experiments import Files, RunSpec
from test_cli_images import run

DIGITS = {"model": "digits", "data": "digits"}

SPECS: list[tuple[dict[str, Any], str]] = [
    # under another name than it would run
    ({"model": "resnet20", "data": "digits", "weights": "trained"}, "only digits is trained on the spot, not resnet20"),
    ({"model": "digits", "data": "random:10", "weights": "trained"}, "trained on digits, not on random:10"),
    ({**DIGITS, "num_classes": 5, "weights": "trained"}, "for 10 classes, not for 5"),
    # numbers that are none
    *(({**DIGITS, name: True}, f"{name} takes no true or false") for name in ("sparsity", "seed", "count", "threads")),
    ({**DIGITS, "grid": [True, 0.9]}, "grid takes no true or false"),
    ({**DIGITS, "sparsity": float("nan")}, "sparsity"),
    ({**DIGITS, "seed": 2**63}, "seed: .* less than or equal"),
    ({**DIGITS, "seed": 10**30}, "seed: "),
    ({**DIGITS, "threads": 100_000}, "threads: .* less than or equal to 1024"),
    ({**DIGITS, "image_size": 0}, "image_size: "),
    ({**DIGITS, "count": -5}, "count: "),
    # grids
    ({**DIGITS, "grid": []}, "grid must rise and not be empty"),
    ({**DIGITS, "grid": [0.9, 0.8]}, "grid must rise and not be empty"),
    ({**DIGITS, "grid": [0.9, 0.9]}, "grid must rise and not be empty"),
    ({**DIGITS, "sweep": []}, "sweep must rise and not be empty"),
    ({**DIGITS, "sweep": [0.9, 0.8]}, "sweep must rise and not be empty"),
    # options
    ({**DIGITS, "rule": "erk", "options": {"flor": 0.1}}, "takes no option 'flor'"),
    ({**DIGITS, "rule": "uniform", "options": {"solver": "exact"}}, "takes no option 'solver'"),
    ({**DIGITS, "rule": "auto", "options": {"flor": 0.1}}, "takes no option 'flor'"),
]


@pytest.mark.parametrize(("given", "message"), SPECS, ids=str)
def test_refused_specs(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RunSpec.read(given)


TOMLS: list[tuple[str, str]] = [
    ("[base]\nmodel = 'digits'\ndata = 'digits'\nsparsity = true\n", "line 4: sparsity takes no true"),
    ("[base]\nmodel = 'digits'\ndata = 'digits'\n\nsparsty = 0.9\n", "line 5: unknown setting 'sparsty'"),
    ("[base]\nmodel = 'digits'\ndata = 'digits'\ngrid = []\n", "line 4: grid must rise"),
    ("[base]\nmodel = 'digits'\ndata = 'digits'\n[axes]\nsparsity = [0.9, 95]\n", "line 5: sparsity must be between"),
    ("[base]\nmodel = 'digits'\ndata = 'digits'\noptions = {flor = 1}\nrule = 'erk'\n", "takes no option 'flor'"),
    ("x = " + "[" * 100_000, "is not TOML"),
    ("x = 1" + "0" * 10_000, "is not TOML|unknown key"),
    ("[bse]\nmodel = 'digits'\n", "unknown key 'bse'"),
    ("[base]\nmodel = 'digits'\ndata = 'digits'\nweights = 'no.safetensors'\n", "no weights 'no.safetensors'"),
    ("[base]\nmodel = 'digits'\ndata = 'digits'\nweights = 'folder'\n", "no weights 'folder'"),
    ("section = 'acuracy'\n[base]\nmodel = 'digits'\ndata = 'digits'\n", "'acuracy'"),
]


@pytest.mark.parametrize(("text", "message"), TOMLS, ids=[message for _, message in TOMLS])
def test_a_study_is_refused_before_its_first_run(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "s.toml").write_text(text, encoding="utf-8")
    code, out, err = run(capsys, "sweep", "s.toml", "--store", "runs")
    assert (code, out) == (2, ""), err
    assert re.search(message, err), err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["digits", "random:10"])
def test_no_file_takes_the_place_of_what_is_made_on_the_spot(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.npz").write_bytes(b"")
    assert Files([tmp_path]).data(name) == name
