"""docs/peers.md is what its records print; these are strict JSON with what a figure must carry; pins are exact.

Nothing here touches a peer: its environment may be anywhere or nowhere.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import pytest

from scripts import loaded

PEERS = Path(__file__).parents[1] / "benchmarks" / "peers"


records, features, figures, page = (loaded(PEERS, name) for name in ("records", "features", "figures", "page"))
environments, run = loaded(PEERS, "environments"), loaded(PEERS, "run")
NAMES = list(records.PEERS)


def test_the_page_is_what_the_records_print() -> None:
    written = page.PAGE.read_text(encoding="utf-8")
    assert written == page.page(), "out of date: python benchmarks/peers/page.py --write"


@pytest.mark.parametrize("name", NAMES)
def test_pins_are_exact(name: str) -> None:
    lines = (PEERS / "pins" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert "torch==2.13.0" in pins
    assert not any(pin.startswith(("nvidia-cu", "triton")) for pin in pins)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_has_what_a_figure_must_carry(name: str) -> None:
    known = records.read(name)
    assert known["peer"] == name
    assert set(known) == {"peer", "install", "work"}
    if known["install"] is not None:
        assert all(known["install"][field] for field in records.INSTALL_FIELDS)
    keys = [records.key_of(work) for work in known["work"]]
    assert keys == sorted(set(keys))
    for work in known["work"]:
        if "the process ended" not in work.get("failed", "") and "took more than" not in work.get("failed", ""):
            assert all(field in work for field in records.WORK_FIELDS), records.key_of(work)
        wanted = {"masks": {"seconds"}, "seconds": {"seconds"}, "accuracy": {"seconds", "score", "reached"}}
        assert "failed" in work or wanted[work["what"]] <= set(work)


def test_a_record_is_written_and_read_back(tmp_path: Path) -> None:
    work = {"what": "accuracy", "network": "resnet20", "entry": "b", "sparsity": 0.9, "score": 1.0}
    content = {"peer": "nncf", "install": None, "work": [work, {**work, "entry": "a"}]}
    records.write(content, tmp_path)
    assert [x["entry"] for x in records.read("nncf", tmp_path)["work"]] == ["a", "b"]
    assert records.read("nni", tmp_path) == {"peer": "nni", "install": None, "work": []}
    assert [name for name, _ in records.every(tmp_path)] == ["nncf"]


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_counted_from_the_script(name: str) -> None:
    counts = page.lines_of(name)
    assert counts
    assert all(0 < count < 20 for count in counts.values())


def test_lines_of_our_own() -> None:
    assert page.lines_of("repairability")["strong"] == 2  # the import and the call


def test_undominated_is_neither_worse_nor_slower_than_another() -> None:
    known = {("a", "", 0.9): (80.0, 1.0), ("b", "", 0.9): (90.0, 2.0), ("c", "", 0.9): (85.0, 3.0)}
    stars = [figures.beaten(mine, known, 0.9, "resnet20") for mine in known.values()]
    assert stars == ["*", "*", ""]
    assert [figures.beaten(mine, known, 0.9, "gpt") for mine in known.values()] == ["*", "", ""]


def test_evidence_is_looked_up(tmp_path: Path) -> None:
    assert features.missing_evidence(tmp_path) == []  # no environment, nothing to look up
    site = tmp_path / "torchao" / "lib" / "python3.11" / "site-packages" / "torchao" / "sparsity"
    site.mkdir(parents=True)
    (site / "wanda.py").write_text("class WandaSparsifier:\n    sparsity_level = hessian = 1\n", encoding="utf-8")
    wrong = features.missing_evidence(tmp_path)
    assert not [x for x in wrong if x.startswith(("torchao, unstructured", "torchao, allocation"))]
    assert [x for x in wrong if x.startswith("torchao, second_order")]  # it must lack what it has here
    assert [x for x in wrong if x.startswith("torchao, layers: no ")]


def test_every_cell_of_the_feature_table_has_evidence() -> None:
    table, evidence = features.table_of_features()
    assert len(table.columns) == len(NAMES) + 1 == len(evidence) + 1
    assert all(cell for row in table.rows for cell in row)


SCRIPT = """
import json, sys, time
words, out = sys.argv[1:-2], sys.argv[-1]
if "die" in words: sys.exit("a last line")
if "ours" in words: print("no such module"); sys.exit(3)
if "sleep" in words: time.sleep(60)
open(out, "w").write(json.dumps({"words": words}))
"""


def test_a_script_answers_dies_or_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    monkeypatch.setattr(records, "script_of", lambda name: script)
    monkeypatch.setattr(run, "python_of", lambda folder: Path(sys.executable))
    assert run.run_script("nncf", tmp_path, ["a", "b"], 1, None) == {"words": ["a", "b"]}
    assert run.run_script("nncf", tmp_path, ["die"], 1, None) == {"failed": "the process ended with 1: a last line"}
    assert run.run_script("nncf", tmp_path, ["sleep"], 1, 0.2) == {"failed": "it took more than 0.2 s"}
    assert records.OURS == 3
    with pytest.raises(SystemExit, match="our part of the work fails .*no such module"):
        run.run_script("nncf", tmp_path, ["ours"], 1, None)  # no record: the peer has not run


def test_what_is_on_record_or_failed_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(records.read, "__defaults__", (tmp_path,))
    monkeypatch.setattr(records.write, "__defaults__", (tmp_path,))
    monkeypatch.setattr(run, "installed", lambda name, folder, again: True)
    asked: list[list[str]] = []

    def answered(name: str, folder: Path, words: list[str], threads: int, timeout: float | None) -> dict[str, object]:
        if "--list" in words:
            return {x: {"masks": False, "networks": ["resnet20"]} for x in ("good", "bad")}
        asked.append(words)
        return {"failed": "no"} if "bad" in words else {"seconds": 1.0, "score": 2.0}

    monkeypatch.setattr(run, "run_script", answered)
    given = {"cache": tmp_path, "shared": tmp_path, "data": tmp_path, "only": ("accuracy",), "networks": ["resnet20"]}
    settings = argparse.Namespace(**given, again=False, threads=1, timeout=None)
    run.measure("nncf", settings)
    assert len(asked) == len(records.SPARSITIES["resnet20"]) + 1  # what failed was tried at one sparsity
    run.measure("nncf", settings)
    assert len(asked) == len(records.SPARSITIES["resnet20"]) + 1
    settings.again = True
    run.measure("nncf", settings)
    assert len(asked) == 2 * (len(records.SPARSITIES["resnet20"]) + 1)


def test_a_failed_install_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, folder: Path, statement: str) -> dict[str, object]:
        raise run.InstallError("ERROR: no matching distribution")

    monkeypatch.setattr(records.read, "__defaults__", (tmp_path,))
    monkeypatch.setattr(records.write, "__defaults__", (tmp_path,))
    monkeypatch.setattr(run, "made", refused)
    assert not run.installed("nni", tmp_path / "nni", again=False)
    assert records.read("nni", tmp_path)["install"]["failed"] == "ERROR: no matching distribution"
    assert not run.installed("nni", tmp_path / "nni", again=False)


def test_seconds_count_where_the_machine_does_nothing_else() -> None:
    assert records.quiet({"load": 0.3, "threads": 1})
    assert records.quiet({"load": 2.1, "threads": 2})
    assert not records.quiet({"load": 9.0, "threads": 2})
    assert not records.quiet({"threads": 1})


def test_seconds_beside_other_work_are_taken_again() -> None:
    assert records.final({"what": "accuracy"})
    assert records.final({"what": "seconds", "failed": "no", "load": 9.0})
    assert records.final({"what": "seconds", "load": 1.0})
    assert not records.final({"what": "masks", "load": 3.0})


def test_an_environment_is_made_once_more_from_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def installs(folder: Path, *words: str) -> float:
        folder.mkdir(exist_ok=True)
        (folder / "torch").touch()
        asked.append((folder.name, Path(words[-1]).stem))
        return 0.0

    monkeypatch.setattr(environments, "pip", installs)
    monkeypatch.setattr(environments.subprocess, "run", lambda *words, **settings: None)
    environments.remake("nni", tmp_path / "nni")
    base = environments.BASE
    assert asked == [(base, base), (base, environments.HARNESS), ("nni", "nni"), ("nni", environments.HARNESS)]
    assert all((tmp_path / x / environments.READY).exists() for x in (base, "nni"))
    assert (tmp_path / "nni" / "torch").samefile(tmp_path / base / "torch")
    environments.remake("torchao", tmp_path / "torchao")
    assert asked[4:] == [("torchao", "torchao"), ("torchao", environments.HARNESS)]  # torch is there


def test_an_environment_that_cannot_be_made_once_more_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, folder: Path) -> None:
        raise run.InstallError("no room")

    monkeypatch.setattr(run, "remake", refused)
    before = records.read("nni")
    with pytest.raises(SystemExit, match="once more: no room"):
        run.installed("nni", tmp_path / "nni", again=False)
    assert records.read("nni") == before


def test_the_harness_has_what_the_language_model_imports() -> None:
    pins = (PEERS / "pins" / f"{environments.HARNESS}.txt").read_text(encoding="utf-8")
    assert {"pydantic==", "pydantic_core==", "safetensors=="} <= set(re.findall(r"^[\w.-]+==", pins, re.MULTILINE))


def test_masks_that_were_not_timed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = ("torchao", {"entry": "WeightNormSparsifier", "failed": "no"})
    monkeypatch.setattr(page, "works", lambda network, what: [failed] if what == "accuracy" else [])
    missing, broken, none = page.without_masks()
    assert "NNI: LevelPruner, global" in missing
    assert "torchao" not in missing
    assert "torchao: WeightNormSparsifier" in broken
    assert "Torch-Pruning" in none
    assert "NNI" not in none


def test_the_best_is_named_where_every_entry_was_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    works = [
        ("repairability", {"entry": "a", "sparsity": 0.7, "score": 90.0, "reached": 0.7}),
        ("nncf", {"entry": "b", "sparsity": 0.7, "score": 80.0, "reached": 0.7}),
        ("nncf", {"entry": "b", "sparsity": 0.8, "score": 70.0, "reached": 0.85}),
        ("torchao", {"entry": "c", "sparsity": 0.7, "failed": "no"}),
    ]
    monkeypatch.setattr(figures, "works", lambda network, what: works)
    rows = {row[0]: row[1:3] for row in figures.scores("resnet20").rows}
    assert rows["repairability: a"] == ("90.00 (best)", "-")
    assert rows["NNCF: b"] == ("80.00", "70.00 at 85.00 %")
    assert rows["torchao: c"] == ("failed", "failed")
