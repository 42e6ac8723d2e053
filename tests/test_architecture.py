"""The shelves of docs/architecture.md, read from the syntax tree: who may import whom, and what may stand where."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch

from repairability import create_model, prune
from repairability._torch import threads

SOURCE = Path(__file__).parents[1] / "src" / "repairability"

SHELVES = [
    [
        *("errors", "naming", "tables", "progress", "provenance"),
        *("_json", "_html", "_files", "_imports", "_interrupts", "_torch", "_vision"),
    ],
    ["algebra", "curves", "allocation"],
    ["network"],
    ["calibration", "comparison", "evaluation", "transition", "models", "data", "solvers", "masks", "prices"],
    ["rules", "scores", "training"],
    ["repairs", "checkpoints"],
    ["diagnostics"],
    ["deploy"],
    ["pruning"],
    ["detect", "checkup"],
    ["experiments"],
    ["report"],
    ["demo"],
    ["__init__"],
    ["cli"],
    ["__main__"],
]
SHELF = {room: number for number, rooms in enumerate(SHELVES) for room in rooms}
GROUND = ["errors", "_json", "_html", "tables"]  # the ground floor's own floor: anyone may use these
NUMPY_ONLY = ["allocation", "curves", "prices", "solvers"]
OPTIONAL = {
    "torchvision": "_vision",
    "pandas": "tables",
    "sklearn": "data",
    "PIL": "data",
    "altair": "report",
    "jinja2": "report",
    "vl_convert": "report",
    "ray": "experiments",
    "onnx": "deploy",
    "onnxruntime": "deploy",
    "onnxscript": "deploy",
    "numba": "deploy",
    "llvmlite": "deploy",
}
"""An optional dependency and the one room that may import it."""

FILES = sorted(SOURCE.rglob("*.py"))


def room_of(file: Path) -> str:
    relative = file.relative_to(SOURCE)
    return relative.parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "repairability":
                yield from (f"repairability.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield f".{node.func.attr}"
            elif isinstance(node.func, ast.Name):
                yield node.func.id


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_a_room_imports_lower_shelves_only(file: Path) -> None:
    room = room_of(file)
    assert room in SHELF, f"{room} stands on no shelf; give it one here and in docs/architecture.md"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for name in imports(tree):
        parts = name.split(".")
        if parts[0] != "repairability" or len(parts) < 2 or parts[1] == room:
            continue
        assert parts[1] in GROUND or SHELF[parts[1]] < SHELF[room], f"{room} must not import {parts[1]}"
    assert room in GROUND or room in SHELF


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_borrowing_and_printing_have_their_room(file: Path) -> None:
    room, found = room_of(file), set(calls(ast.parse(file.read_text(encoding="utf-8"))))
    borrowing = {c for c in found if c.startswith((".register_forward", ".register_full")) or c in (".train", ".eval")}
    assert not borrowing or room == "_torch", f"{sorted(borrowing)} belong in _torch"
    assert "print" not in found or room == "cli"
    if room in NUMPY_ONLY:
        assert not any(name.split(".")[0] == "torch" for name in imports(ast.parse(file.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_optional_dependencies_enter_in_one_file_each(file: Path) -> None:
    for name in imports(ast.parse(file.read_text(encoding="utf-8"))):
        package = name.split(".")[0]
        assert room_of(file) == OPTIONAL.get(package, room_of(file)), f"import {package} through {OPTIONAL[package]}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_the_library_knows_nothing_of_the_reproduction(file: Path) -> None:
    assert not [
        name for name in imports(ast.parse(file.read_text(encoding="utf-8"))) if name.split(".")[0] == "reproduction"
    ]


def test_no_two_types_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(file.relative_to(SOURCE)))
    assert not {name: files for name, files in places.items() if len(files) > 1}
    assert len(places) > 50  # they were read


def test_the_second_opinion_imports_nothing_of_the_package() -> None:
    tree = ast.parse((Path(__file__).parent / "reference.py").read_text())
    assert not [name for name in imports(tree) if name.split(".")[0] in ("repairability", "conftest", "networks")]


def test_every_module_has_its_test_file() -> None:
    """A test file of the module's name or of its room's, or a test that imports the module itself."""
    tests = list(Path(__file__).parent.glob("test_*.py"))
    named = {file.stem.removeprefix("test_") for file in tests}
    imported = {name for file in tests for name in imports(ast.parse(file.read_text()))}
    missing = []
    for file in FILES:
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        if parts[-1] in ("__init__", "__main__"):
            continue
        if not ({part.strip("_") for part in parts[1:]} & named or ".".join(parts) in imported):
            missing.append("/".join(parts))
    assert not missing, f"no test file for {missing}"


def test_the_rules_can_fail() -> None:
    """The two readers above see what they must see."""
    tree = ast.parse("import torch.nn\nfrom repairability import cli\nmodel.train()\nprint(1)\n")
    assert set(imports(tree)) == {"torch.nn", "repairability.cli"}
    assert set(calls(tree)) == {".train", "print"}


def test_the_index_of_formulae_points_at_what_is_there() -> None:
    """docs/method.md: every file, every function; and a label that stands there stands in the function's file too."""
    page = (SOURCE.parents[1] / "docs" / "method.md").read_text(encoding="utf-8")
    lines = page.split("## Index of formulas")[1].splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("|") and "`" in line]
    assert len(rows) >= 20
    for _, file, functions, labels in rows:
        text = (SOURCE / file.strip(" `")).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w.]+)`", functions):
            assert re.search(rf"(def|class) {name.split('.')[-1]}\b", text), f"{file}: {name}"
        for label in re.findall(r"`((?:eq|alg):\w+)`", labels):
            assert label in text, f"{file} does not carry {label}"


def test_the_road_of_prune_is_the_one_in_the_docs() -> None:
    """docs/architecture.md lists every module that the call enters, but shelf 0, in the order of entrance."""
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    told = re.findall(r"^\d+\. `([\w/]+\.py)`", page, re.MULTILINE)
    entered: dict[str, None] = {}

    def watch(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(SOURCE)) and not frame.f_code.co_name.startswith("<"):
            entered[str(Path(file).relative_to(SOURCE))] = None

    model = create_model("digits")
    images = torch.randn(140, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # BatchNorm cycles over few images
        prune(model, images[:130], sparsity=0.9, rule="erk", repair="none")  # what is imported late is imported now
        before = sys.getprofile()
        with threads(1):  # the profile sees this thread alone
            sys.setprofile(watch)
            try:
                prune(model, images, sparsity=0.95)
            finally:
                sys.setprofile(before)
    walked = [file for file in entered if SHELF[file.split("/")[0].removesuffix(".py")] and "models" not in file]
    assert told == walked
