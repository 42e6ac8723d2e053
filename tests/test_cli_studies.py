from __future__ import annotations

import html
import json
import os
from pathlib import Path

import pytest

from repairability.experiments import Store, read_study
from repairability.report.sections import SMOKE
from test_cli_images import run
from test_experiments import study_file

FOLDER = Path(__file__).parents[1] / "reproduction" / "studies"
PAPER = sorted(FOLDER.glob("*.toml"))
OURS = sorted(FOLDER.glob("ours/*.toml"))


@pytest.fixture(scope="module")
def smoke_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies share cells; so they share a store, also among the processes that run tests."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "smoke" / "runs"


STUDIES = [f"{name}_{network}.toml" for name in ("operators", "strong") for network in ("resnet18", "resnet56")]
LONG = [FOLDER / "ours" / name for name in STUDIES]
"""The surgeon and the search take minutes on these networks, whatever the images."""


@pytest.mark.slow
@pytest.mark.parametrize("study", [file for file in PAPER + OURS if file not in LONG], ids=lambda file: file.stem)
def test_every_study_runs_end_to_end(study: Path, smoke_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "sweep", str(study), "--smoke", "--store", str(smoke_store), "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["failed"], found["left"], found["problems"]) == (0, 0, [])
    assert found["tables"]
    for table in found["tables"]:
        assert table["rows"]
        assert SMOKE in table["caption"]
    words = [word for table in found["tables"] for row in [table["columns"], *table["rows"]] for word in row]
    assert any("paper" in word for word in words) or study in OURS or study.stem in ("digits", "detectors")


@pytest.mark.parametrize("study", LONG, ids=lambda file: file.stem)
def test_long_studies_run_nothing_that_a_short_one_does_not(study: Path) -> None:
    """What is smoked on ResNet20 is what they do on another network."""
    short = study.with_stem(f"{study.stem.partition('_')[0]}_resnet20")
    smoked = {(spec.score, spec.repair) for spec in read_study(short).specs}
    assert {(spec.score, spec.repair.partition("@")[0]) for spec in read_study(study).specs} <= smoked


def test_the_page_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every study of the store is on the page, and as files."""
    store = tmp_path / "runs"
    for study in FOLDER / "digits.toml", study_file(tmp_path, seeds="[0]"):
        assert run(capsys, "sweep", str(study), "--smoke", "--store", str(store))[0] == 0
    page = tmp_path / "page.html"
    code, out, err = run(capsys, "report", "--store", str(store), "--out", str(page), "--format", "html,md,csv")
    assert code == 0, err
    text = page.read_text()
    shown = html.unescape(text).replace("\N{NO-BREAK SPACE}", " ")
    assert len(Store(store).studies()[0]) == 2
    assert all(entry.title in shown for entry in Store(store).studies()[0])
    assert "<img" in text or "<svg" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert f"wrote {page}" in out
    assert (tmp_path / "page" / "runs.csv").read_text().count("\n") > 10


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(study_file(tmp_path, seeds="[0]"))


def test_a_plan_runs_nothing(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "sweep", small, "--dry-run", "--only", "rule=rr")
    assert code == 0
    assert "2 cells, 2 to run" in out
    assert not Path("runs").exists()
    code, out, _ = run(capsys, "sweep", small, "--dry-run", "--json")
    assert len(json.loads(out)["cells"]) == 6


def test_a_part_then_the_rest(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "sweep", small, "--only", "rule=rr", "--limit", "1", "--json")
    assert code == 0
    assert {k: json.loads(out)[k] for k in ("total", "done", "left")} == {"total": 2, "done": 1, "left": 1}
    assert len(Store("runs").studies()[0][0].run_ids) == 2
    code, out, _ = run(capsys, "sweep", small)
    assert code == 0
    run(capsys, "sweep", small, "--only", "rule=rr")
    assert "small: 6 runs, 1 known, 5 done now, 0 done elsewhere, 0 failed, 0 left; records in runs" in out
    assert "top-1 accuracy" in out
    ((entry,), _) = Store("runs").studies()
    assert len(entry.run_ids) == 6


def test_failures_are_said(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(small).read_text(encoding="utf-8").replace("[0.8, 0.9]", "[0.8, 0.999]")
    Path(small).write_text(text, encoding="utf-8")
    code, out, err = run(capsys, "sweep", small, "--only", "rule=erk")
    assert code == 1
    assert "1 failed" in out
    assert "BudgetError" in err
    code, _, err = run(capsys, "report", "--store", "runs", "--out", "page.html")
    assert code == 0, err
    assert "BudgetError" in Path("page.html").read_text(encoding="utf-8")


def test_an_archive_says_what_its_store_said(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "sweep", small)
    code, out, err = run(capsys, "archive", "--store", "runs", "--out", "kept")
    assert code == 0, err
    assert [line.split()[-1] for line in out.splitlines()] == ["kept/runs.jsonl.gz"]
    for place in ("runs", "kept"):
        code, _, err = run(capsys, "report", "--store", place, "--out", f"from_{place}", "--format", "md")
        assert code == 0, err
    files = sorted(file.name for file in Path("from_runs").iterdir())
    assert files
    assert files == sorted(file.name for file in Path("from_kept").iterdir())
    for name in files:
        assert (Path("from_runs") / name).read_text() == (Path("from_kept") / name).read_text()
    Path("kept/runs.jsonl.gz").write_bytes(b"noise")
    code, _, err = run(capsys, "report", "--store", "kept", "--out", "page.html")
    assert code == 2
    assert "is damaged" in err


def test_a_sweep_goes_on_from_an_archive(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "sweep", small, "--only", "rule=rr")
    run(capsys, "archive", "--store", "runs", "--out", "kept")
    code, out, _ = run(capsys, "sweep", small, "--store", "later", "--known", "kept", "--dry-run")
    assert code == 0
    assert out.count("done, archived") == 2
    assert "6 cells, 4 to run" in out
    assert not Path("later").exists()
    code, out, err = run(capsys, "sweep", small, "--store", "later", "--known", "kept", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert {k: found[k] for k in ("total", "known", "copied", "done")} == {
        "total": 6,
        "known": 2,
        "copied": 2,
        "done": 4,
    }
    first = {record.run_id: record for record in Store("runs").read_all()[0]}
    for run_id, record in first.items():
        again = Store("later").read(run_id)
        assert again is not None
        assert again.result["top1"] == pytest.approx(record.result["top1"], rel=1e-5)
        assert again.provenance["seconds"] == pytest.approx(record.provenance["seconds"], rel=1e-5)  # not run again
    _, out, _ = run(capsys, "sweep", small, "--store", "last", "--known", "kept", "--limit", "0")
    assert "small: 6 runs, 2 known (2 copied from kept), 0 done now" in out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["sweep", "nothing.toml"], "cannot read nothing.toml"),
        (["sweep", "small.toml", "--executor", "rya"], "unknown executor 'rya'; did you mean ray"),
        (["sweep", "small.toml", "--workers", "0"], "--workers must be at least 1"),
        (["sweep", "small.toml", "--only", "rule=erkk"], "no cell of small fits rule=erkk"),
        (["sweep", "small.toml", "--files", "nowhere"], "--files nowhere: there is no such folder"),
        (["sweep", "small.toml", "--known", "nowhere"], "nowhere is no archive: it has no runs.jsonl.gz"),
        (["report", "--store", "nowhere"], "there is no store at nowhere"),
        (["report"], "either a FILE or --store DIR"),
    ],
)
def test_wrong_input(given: list[str], message: str, small: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *given)
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err
