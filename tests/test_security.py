"""The promises of SECURITY.md: no code out of files, no writes but where told, no network but checked downloads."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from repairability import Allocation, Diagnosis, InputError, RepairabilityError, load, load_data
from repairability._files import read_text
from repairability._vision import torchvision
from repairability.experiments import Store, read_study
from repairability.experiments.archive import RUNS, read_archive
from repairability.experiments.study import StudyEntry
from repairability.models.weights import pretrained_model, read_state
from test_cli_images import run
from test_experiments import study_file, with_tests

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "repairability"

# --- no code out of files -----------------------------------------------------------------------------------------

RUNNERS = {"eval", "exec", "compile", "__import__", "execfile"}
READERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml", "jsonpickle"}
SHELLS = {"os.system", "os.popen", "os.execv", "os.execve", "os.spawnv", "subprocess.getoutput", "torch.hub.load"}
SAFE = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False), "numpy.load": ("allow_pickle", False)}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def dangers(tree: ast.AST) -> Iterator[str]:
    """Calls that could run what a file says."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, given = dotted(node.func), {word.arg: word.value for word in node.keywords}
        word, wanted = SAFE.get(name, ("", None))
        value = given.get(word)
        shell = given.get("shell")
        if (
            name in RUNNERS
            or name in SHELLS
            or name.split(".")[0] in READERS
            or (word and not (isinstance(value, ast.Constant) and value.value is wanted))
            or (shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False))
        ):
            yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_reader_that_could_run_code(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert not list(dangers(tree))
    hidden = [
        x for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in READERS for x in node.names
    ]
    assert not hidden, "imported by name, where the test above does not see its use"


@pytest.mark.parametrize(
    "line",
    [
        "pickle.load(f)",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "torch.load(f, weights_only=safe)",
        "np.load(f)",
        "np.load(f, allow_pickle=True)",
        "eval(text)",
        "exec(text)",
        "yaml.load(f)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_the_reader_of_the_source_sees_it(line: str) -> None:
    assert list(dangers(ast.parse(line)))


@pytest.mark.parametrize("line", ["model.eval()", "torch.load(f, weights_only=True)", "np.load(f, allow_pickle=False)"])
def test_the_reader_of_the_source_lets_pass(line: str) -> None:
    assert not list(dangers(ast.parse(line)))


class Payload:
    """Unpickled, it leaves a file in the working folder."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("awake"),)


READS: dict[str, Callable[[Path], object]] = {
    "weights.pt": read_state,
    "weights.th": read_state,
    "weights.safetensors": read_state,
    "arrays.npz": lambda file: load_data(f"npz:{file}"),
    "pruned.safetensors": lambda file: load(file, torch.nn.Linear(1, 1)),
    "study.toml": read_study,
    "diagnosis.json": lambda file: Diagnosis.from_json(read_text(file)),
    "allocation.json": lambda file: Allocation.from_json(read_text(file)),
    "records/x.json": lambda file: Store(file.parents[1]).read("x"),
    RUNS: lambda file: read_archive(file.parent),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_payload_in_every_file_stays_asleep(
    name: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    contents = [pickle.dumps(Payload(), protocol), pickle.dumps({"state_dict": Payload()}, protocol)]
    for content in contents:
        file.write_bytes(content)
        with pytest.raises(RepairabilityError):
            READS[name](file)
    if name.endswith(("pt", "th")):
        torch.save({"w": torch.zeros(1), "x": Payload()}, file)
        with pytest.raises(InputError):
            READS[name](file)
    if name.endswith("npz"):
        np.savez(file, x_train=np.array([Payload()], dtype=object))
        with pytest.raises(InputError):
            READS[name](file)
    assert not Path("awake").exists()
    pickle.loads(contents[0])  # it is alive
    assert Path("awake").exists()


@pytest.mark.parametrize("name", ["loud:touch", "faulthandler:_sigsegv", "sys:exit", "os:abort", "builtins:input"])
def test_what_a_strangers_store_names_is_not_called(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loud.py").write_text("def touch(records):\n    open('awake', 'w').close()\n", encoding="utf-8")
    Store("runs").write_study(StudyEntry("s", "s", (name,), "", ()))
    code, _, err = run(capsys, "report", "--store", "runs", "--out", "page")
    page = Path("page", "report.html")
    assert code in (0, 2)
    assert "is no section" in err + (page.read_text(encoding="utf-8") if page.exists() else "")
    assert not Path("awake").exists()


# --- no writes but where told, no network -------------------------------------------------------------------------

WATCHED = """
import json, os, sys
changed, connections = set(), set()
FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

def watch(event, given):
    if event == "open" and isinstance(given[0], (str, bytes)) and isinstance(given[2], int) and given[2] & FLAGS:
        changed.add(os.path.abspath(os.fsdecode(given[0])))
    elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "shutil.rmtree"):
        if isinstance(given[0], (str, bytes, os.PathLike)):
            changed.add(os.path.abspath(os.fsdecode(given[0])))
    elif event in ("os.rename", "os.link", "os.symlink"):
        changed.update(os.path.abspath(os.fsdecode(path)) for path in given[:2])
    elif event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "urllib.Request"):
        connections.add(f"{event} {given[-1]!r}")

sys.addaudithook(watch)
from repairability.cli import main
from repairability.training import digits
digits.DIGITS_EPOCHS = 1  # it is trained, and kept in the cache
for verb in json.loads(sys.argv[1]):
    try:
        main(verb)
    except SystemExit as end:
        assert not end.code, (verb, end.code)
seen = json.dumps([sorted(changed), sorted(connections)])
with open(sys.argv[2], "w") as file:
    file.write(seen)
"""
NETWORK = ("networks:small_net", "--data", "random:10", "--threads", "1")
VERBS: list[tuple[str, ...]] = [
    ("layers", "networks:small_net"),
    ("allocate", "networks:small_net", "-s", "0.9", "--csv", "named/plan.csv"),
    ("doctor", *NETWORK),
    ("diagnose", *NETWORK, "--count", "8", "--out", "named/diagnosis.json"),
    ("prune", *NETWORK, "--count", "8", "-s", "0.9", "--recipe", "paper", "--out", "named/pruned.safetensors"),
    ("info", "named/pruned.safetensors"),
    ("compress", "named/pruned.safetensors", "--out", "named/sparse.safetensors"),
    ("evaluate", "digits", "--weights", "trained", "--data", "digits", "--limit", "8"),
    ("sweep", "small.toml", "--store", "named/runs", "--limit", "2"),
    ("list", "--store", "named/runs"),
    ("report", "--store", "named/runs", "--out", "named/page", "--format", "html,md,csv"),
    ("archive", "--store", "named/runs", "--out", "named/kept"),
]


@pytest.mark.slow
def test_verbs_write_where_they_were_told_and_open_no_connection(tmp_path: Path) -> None:
    """Python itself says which files are opened to be written and which connections are made."""
    study_file(tmp_path)
    for name in ("named", "cache", "temporary"):
        (tmp_path / name).mkdir()
    places = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "temporary"), "HOME": str(tmp_path)}
    places |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "temporary" / "torch")}  # which torch hands to its children
    settings = {**os.environ, **places, "PYTHONPATH": with_tests(), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", WATCHED, json.dumps(VERBS), "seen.json"]
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    changed, connections = json.loads((tmp_path / "seen.json").read_text(encoding="utf-8"))
    assert not connections
    told = [f"{tmp_path}/{place}" for place in ("named", "cache/repairability", "temporary")]
    assert not [path for path in changed if not path.startswith((*told, "/dev/null", "/proc/self/"))]
    assert any(path.startswith(f"{tmp_path}/named/runs/records/") for path in changed)  # they were seen
    left = {str(path.relative_to(tmp_path)).split("/")[0] for path in tmp_path.rglob("*")}
    assert left == {"named", "cache", "temporary", "small.toml", "seen.json"}
    assert not [path for path in (tmp_path / "temporary").iterdir() if not path.name.startswith("torch")]


# --- downloads ----------------------------------------------------------------------------------------------------


def test_every_download_is_checked_by_a_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = torchvision("datasets")
    from repairability.data.vision import DATA_SETS, IMAGEWOOF

    hashes = {
        "cifar10": [datasets.CIFAR10.tgz_md5],
        "cifar100": [datasets.CIFAR100.tgz_md5],
        "stl10": [datasets.STL10.tgz_md5],
        "pets": [md5 for _, md5 in datasets.OxfordIIITPet._RESOURCES],
        "imagenette": [md5 for _, md5 in datasets.Imagenette._ARCHIVES.values()],
    }
    assert {*hashes, "imagewoof"} == set(DATA_SETS)
    asked: dict[str, Any] = {}

    def download(url: str, root: str, **given: Any) -> None:
        asked[url] = given.get("md5")
        raise OSError("no network here")

    monkeypatch.setattr(datasets.utils, "download_and_extract_archive", download)
    with pytest.raises(InputError, match="could not be downloaded"):
        load_data("imagewoof", root=tmp_path)
    hashes["imagewoof"] = [asked[IMAGEWOOF]]
    assert all(re.fullmatch("[0-9a-f]{32}", md5) for found in hashes.values() for md5 in found), hashes


def test_an_archive_with_another_hash_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = torchvision("datasets")

    def other(url: str, filename: str, *_: Any) -> None:
        Path(filename).write_bytes(b"not what was published")

    monkeypatch.setattr(datasets.utils, "_urlretrieve", other)
    monkeypatch.setattr(datasets.utils, "_get_redirect_url", lambda url, **_: url)
    with pytest.raises(InputError, match="could not be downloaded"):
        load_data("imagewoof", root=tmp_path)
    assert not (tmp_path / "imagewoof2-320").exists()


def test_weights_are_checked_by_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    models = torchvision("models")
    asked: dict[str, Any] = {}

    def download(self: object, **given: Any) -> None:
        asked.update(given)
        raise OSError("no network here")

    monkeypatch.setattr(models.ResNet18_Weights, "get_state_dict", download)
    with pytest.raises(InputError, match="could not be downloaded"):
        pretrained_model("resnet18", None)
    assert asked["check_hash"] is True
    assert asked["weights_only"] is True


# --- the page -----------------------------------------------------------------------------------------------------


def test_the_page_names_tests_that_are_there() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) >= 15
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, f"{file}: {test}"
    promises = page.split("## What is not promised")[0].split("\n**")[1:]
    assert all("`tests/" in promise for promise in promises), "a promise without its test"
