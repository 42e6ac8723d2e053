"""The front door opens at once: importing the package and asking for help load nothing heavy, and say what is true."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import repairability as rp
from repairability import cli
from repairability.calibration import COUNT
from repairability.cli import detect, diagnose, finetune, options, prune
from repairability.data import DATA_SETS
from repairability.detect import METHODS
from repairability.diagnostics import GRID, OBSERVE
from repairability.experiments import EXECUTORS
from repairability.models import MODELS
from repairability.network.discover import AUTO_TYPES, SKIPPED
from repairability.network.kinds import TYPES
from repairability.pruning.choose import SECONDS
from repairability.repairs import REPAIRS
from repairability.report import FORMATS
from repairability.rules import RULES
from repairability.scores import SCORES
from repairability.training import TrainConfig
from test_cli import run

HEAVY = (
    *("torch", "torchvision", "numpy", "scipy", "pandas", "sklearn", "safetensors"),
    *("altair", "vl_convert", "matplotlib", "plotly", "jinja2", "ray"),
)
"""Not pydantic: newer versions of Typer read arguments with it."""

EVERY_HELP = """
import json, sys
from repairability import cli

loaded = {}
for verb in ["", *cli.VERBS]:
    try:
        cli.main([*([verb] if verb else []), "--help"])
    except SystemExit as end:
        assert end.code == 0, verb
    loaded[verb] = sorted({name.split(".")[0] for name in sys.modules})
print("LOADED" + json.dumps(loaded))
"""


def in_a_fresh_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_no_help_loads_anything_heavy() -> None:
    loaded = json.loads(in_a_fresh_process(EVERY_HELP).rpartition("LOADED")[2])
    assert list(loaded) == ["", *cli.VERBS]
    for verb, modules in loaded.items():
        assert "typer" in modules
        assert not set(modules) & set(HEAVY), verb


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_teaches(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, verb, "--help")
    assert code == 0
    assert "--json" in out
    assert f"Example: repairability {verb}" in out


def test_the_names_in_the_help_are_the_registries() -> None:
    for text, names in (
        (options.RULES, RULES),
        (options.SCORES, SCORES),
        (options.REPAIRS, REPAIRS),
        (options.OBSERVED, OBSERVE),
        (options.METHODS, METHODS),
        (options.EXECUTORS, EXECUTORS),
        (options.FORMATS, FORMATS),
        (options.DATA_SETS, DATA_SETS),
        (options.NETWORKS, MODELS),
    ):
        assert text.split(", ") == list(names)
    assert list(prune.RECIPES) == list(rp.RECIPES)
    assert (options.FIRST_CONV, options.LAST_LINEAR) == SKIPPED
    assert set(re.findall(r"\w+", options.TYPES)) == set(TYPES)
    assert options.LayerChoice.types.default == AUTO_TYPES
    assert tuple(options.LayerChoice.skip.default) == SKIPPED


def test_the_defaults_in_the_help_are_the_library_s() -> None:
    assert options.sparsities_of(diagnose.GRID, "--grid") == list(GRID)
    assert options.COUNT.default == COUNT
    assert prune.SECONDS == SECONDS
    for verb in (rp.prune, rp.prune_many):
        assert inspect.signature(verb).parameters["recipe"].default == prune.DEFAULT
    taken = inspect.signature(rp.diagnose).parameters
    assert (options.SCORE.default, options.REPAIR.default) == (taken["score"].default, taken["repair"].default)
    for field in fields(finetune.Schedule):
        assert field.default.default == getattr(TrainConfig, field.name)
    taken = inspect.signature(rp.find_transition).parameters
    for field in fields(detect.Cts):
        assert field.default.default == taken[field.name].default


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"repairability {rp.__version__}\n", "")
    as_module = [sys.executable, "-m", "repairability", "--version"]
    assert subprocess.check_output(as_module, text=True) == f"repairability {rp.__version__}\n"


COMPLETE = """
eval "$(repairability --show-completion bash)"
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _repairability_completion repairability; echo "${COMPREPLY[*]}"
"""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ac"], "accelerate"),
        (["prune", "--re"], "--recipe --repair --report"),
        (["prune", "digits", "--recipe", "s"], "strong"),
        (["prune", "digits", "--data", "fo"], "folder:"),
        (["layers", "dig"], "digits"),
        (["layers", "no_such_name"], ""),  # bash goes on to complete files
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_bash_completes(typed: list[str], offered: str, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    program = tmp_path / "repairability"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m repairability "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [bash, "-c", COMPLETE, "bash", "repairability", *typed]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (offered, "")


def test_importing_the_package_loads_nothing() -> None:
    code = f"import sys, repairability; print([m for m in {HEAVY} if m in sys.modules], len(dir(repairability)) > 30)"
    assert in_a_fresh_process(code) == "[] True\n"


def test_every_name_is_there_and_a_type_checker_sees_the_same() -> None:
    tree = ast.parse(inspect.getsource(rp))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    seen = {
        alias.asname: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    rooms = {name: f"repairability.{room}".rstrip(".") for name, room in rp._ROOM_OF.items()}
    assert seen == {name: (room, name) for name, room in rooms.items()}
    assert sorted(rp.__all__) == rp.__all__ == sorted(seen)
    for name in rp.__all__:
        assert getattr(rp, name) is not None
        assert name in dir(rp)
    assert rp.prune.__module__.startswith("repairability.pruning")
    assert rp.models.create_model is rp.create_model


def test_a_name_nobody_knows() -> None:
    with pytest.raises(AttributeError, match="unknown name in repairability 'prun'; did you mean prune"):
        rp.prun  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'prun' from 'repairability'"):
        exec("from repairability import prun")
    assert not hasattr(rp, "__wrapped__")


def test_the_version_is_one() -> None:
    root = Path(__file__).parents[1]
    changes, citation = ((root / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff"))
    assert f"\nversion: {rp.__version__}\n" in citation
    assert re.findall(r"^## (\d[\w.]*)", changes, re.MULTILINE)[0] == rp.__version__
