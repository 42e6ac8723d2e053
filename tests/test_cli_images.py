"""The verbs that look at images: diagnose, prune, evaluate, report, demo."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import repairability as rp
from conftest import interruptible
from repairability import Diagnosis, create_model, demo, load, report, solvers
from repairability.cli.options import DataSource
from repairability.network.batches import PROBE
from repairability.pruning import BEST
from repairability.report import ReportData
from test_cli import run

DIGITS = ["digits", "--data", "digits"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_diagnose_feeds_allocate_prune_and_report(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "diagnose", *DIGITS, "--out", "d.json", "--grid", "0.7,0.9,0.975")
    assert code == 0
    assert "layer3.1.conv2" in out
    found = Diagnosis.from_json(Path("d.json").read_text(encoding="utf-8"))
    assert found.rr.grid["layer1.0.conv1"].tolist() == [0.7, 0.9, 0.975]
    code, out, _ = run(capsys, "allocate", "digits", "-s", "0.9", "-r", "rr", "--curves", "d.json", "--json")
    assert json.loads(out)["rule"] == "rr"
    code, out, _ = run(capsys, "prune", *DIGITS, "-s", "0.9", "--recipe", "paper", "--curves", "d.json", "--json")
    assert code == 0
    assert (json.loads(out)["recipe"], json.loads(out)["rule"]) == ("paper", "rr")
    code, out, _ = run(capsys, "report", "d.json", "--out", "page.html")
    assert code == 0
    assert "<html" in Path("page.html").read_text(encoding="utf-8")[:500]


def test_diagnose_as_csv_and_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "diagnose", *DIGITS, "--out", "d.csv", "--json", "--observe", "norm", "--only", "layer3.*"
    )
    assert code == 0
    assert Diagnosis.from_csv(Path("d.csv").read_text(encoding="utf-8")) == Diagnosis.from_json(out)
    Path("d.json").write_text(out, encoding="utf-8")
    only = ("-s", "0.9", "-r", "rr", "--only", "layer3.*", "--json")
    plans = [run(capsys, "allocate", "digits", *only, "--curves", name) for name in ("d.csv", "d.json")]
    assert plans[0] == plans[1]
    assert json.loads(plans[0][1])["rule"] == "rr"
    assert run(capsys, "report", "d.csv", "--out", "page.html")[0] == 0
    assert "layer3.1.conv2" in Path("page.html").read_text(encoding="utf-8")
    for name, wrong in (("wrong.csv", "a,b\n1,2\n"), ("wrong.json", "{}")):
        Path(name).write_text(wrong, encoding="utf-8")
        for verb in (("allocate", "digits", *only, "--curves", name), ("report", name)):
            code, _, err = run(capsys, *verb)
            assert (code, err.startswith(f"error: {name}: ")) == (2, True)


@pytest.mark.slow
def test_prune_writes_a_checkpoint_that_evaluate_reads(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys,
        "prune",
        *DIGITS,
        "-s",
        "0.8",
        "--recipe",
        "paper",
        "-r",
        "erk",
        "--out",
        "p.safetensors",
        "--evaluate",
        "100",
        "--threads",
        "2",
    )
    assert code == 0
    assert "wrote p.safetensors" in out
    assert "pruned: top-1" in out
    assert "note: BatchNorm recalibration wants 2560 images; it cycles over the 1072 there are" in err
    assert "recipe paper with rule erk: " in out
    found = load("p.safetensors", create_model("digits"))
    assert (found.header["rule"], found.recipe) == ("erk", "paper with rule erk")
    code, out, _ = run(
        capsys,
        "evaluate",
        *DIGITS,
        "--checkpoint",
        "p.safetensors",
        "--limit",
        "200",
        "--agreement",
        "--json",
        "--out",
        "e.json",
    )
    assert code == 0
    found = json.loads(out)
    assert found["n"] == 200
    assert 0 <= found["agreement"]["same"] <= 1
    way = {"recipe": "paper with rule erk", "rule": "erk", "score": "magnitude", "repair": "cr+bn"}
    assert found["checkpoint"] == {**way, "sparsity": pytest.approx(0.8, abs=0.01)}
    assert json.loads(Path("e.json").read_text(encoding="utf-8")) == found


@pytest.mark.slow
def test_the_same_command_gives_the_same_bits(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for recipe in ("strong", "paper"):
        for name in ("a", "b"):
            given = ("-s", "0.9", "--recipe", recipe, "--out", f"{name}.safetensors", "--seed", "3")
            assert run(capsys, "prune", *DIGITS, *given)[0] == 0
        assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()


def test_evaluate_after_recalibration(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads(run(capsys, "evaluate", *DIGITS, "--limit", "100", "--json")[1])
    after = json.loads(run(capsys, "evaluate", *DIGITS, "--limit", "100", "--json", "--recalibrate")[1])
    assert before["loss"] != after["loss"]


@pytest.mark.slow
def test_detect_over_draws(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["detect", *DIGITS, "--sparsities", "0.9,0.93,0.96", "--no-null", "--seeds", "2"]
    code, out, _ = run(capsys, *given, "--json", "--out", "t.json")
    assert code == 0
    found = json.loads(out)
    assert len(found["draws"]) == 2
    assert set(found["consensus"]["votes"]) == {"0.9", "0.93", "0.96"}
    assert json.loads(Path("t.json").read_text(encoding="utf-8")) == found
    code, out, _ = run(capsys, *given)
    assert "over 2 draws: stable core" in out


@pytest.mark.slow
def test_detect_by_agreement_as_a_page(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["detect", *DIGITS, "--method", "agreement", "--sparsities", "0.5,0.9", "--no-null", "--out", "t.html"]
    code, out, _ = run(capsys, *given)
    assert code == 0
    assert "chance" in out
    assert "Transition of digits" in Path("t.html").read_text(encoding="utf-8")


DRY = ["prune", *DIGITS, "-s", "0.9", "--dry-run"]


def test_dry_run_shows_the_plan_and_does_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *DRY, "--recipe", "paper", "--out", "p.safetensors")
    assert code == 0
    assert "paper: rule rr (curves: measured now, in one pass), score magnitude, repair cr+bn" in out
    assert "p.safetensors" in out
    given = ("--recipe", "paper", "-r", "erk", "--option", "floor=0.01", "--repair", "none")
    code, out, _ = run(capsys, *DRY, "--json", *given)
    assert code == 0
    plan = json.loads(out)
    recipe = {"rule": "erk", "score": "magnitude", "repair": "none", "options": {"floor": 0.01}, "curves": None}
    assert plan["recipes"] == [{"recipe": "paper with rule erk floor=0.01, repair none", **recipe}]
    assert plan["pruned"] == pytest.approx(0.9 * plan["prunable"], abs=plan["layers"] / 2)  # rounded layer by layer
    assert (plan["seconds"], plan["held_out"], plan["out"]) == (None, 0, None)
    assert os.listdir(place) == []


def test_dry_run_says_how_many_go_where_that_is_known(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """global's budget is a share of all weights, unless it is told otherwise."""
    given = {
        ("-r", "erk"): True,
        ("-r", "global"): False,
        ("-r", "global", "--option", "over=prunable"): True,
        ("-r", "auto"): False,
        ("--budget", "macs"): False,
    }
    for more, known in given.items():
        plan = json.loads(run(capsys, *DRY, "--json", *more)[1])
        assert (plan["pruned"] is not None) == known, more


def test_without_a_word_it_is_the_strong_recipe(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = json.loads(run(capsys, *DRY, "--json")[1])["recipes"]
    strong = rp.RECIPES["strong"]
    parts = {"rule": strong.rule, "score": strong.score, "repair": strong.repair, "options": dict(strong.options)}
    assert shown == {"recipe": "strong", **parts, "curves": shown["curves"]}
    assert "strong: rule " in run(capsys, *DRY)[1]


def test_dry_run_of_a_choice_shows_what_would_be_tried(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(run(capsys, *DRY, "--json", "--best", "--seconds", "20")[1])
    assert [recipe["recipe"] for recipe in plan["recipes"]] == [recipe.name for recipe in BEST]
    assert (plan["seconds"], plan["held_out"]) == (20, 1280)
    plan = json.loads(run(capsys, *DRY, "--json", "-r", "auto", "--option", "solver=exact", "--option", "floor=0")[1])
    given = {recipe["rule"]: recipe["options"] for recipe in plan["recipes"]}
    measured = {"solver": "exact"}
    assert given == {"erk": {"floor": 0}, "lamp": {}, "global": {}, "rr": measured, "residual": measured}
    assert plan["seconds"] is None
    assert "no trial begins after, seconds" in run(capsys, *DRY, "--best")[1]


def test_prune_by_a_rule_with_options(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pinned = (
        "-r",
        "forced",
        "--option",
        'pinned={"*shortcut*": 0.5}',
        "--option",
        "rest=erk",
        "--option",
        "floor=0.01",
    )
    code, out, err = run(capsys, "prune", *DIGITS, "-s", "0.9", *pinned, "--repair", "none", "--json")
    assert code == 0, err
    plan = rp.Allocation.from_dict(json.loads(out))
    assert plan["layer2.0.shortcut.0"] == plan["layer3.0.shortcut.0"] == 0.5
    options = {"pinned": {"*shortcut*": 0.5}, "rest": "erk", "floor": 0.01}
    assert plan == rp.allocate(create_model("digits"), sparsity=0.9, rule="forced", **options)


@pytest.mark.slow
def test_a_choice_of_the_rule_uses_the_options(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact solver finds an objective that is no worse, and in one of the trials it is asked."""
    asked = []
    exact = solvers.SOLVERS["exact"]
    monkeypatch.setitem(solvers.SOLVERS, "exact", lambda problem: asked.append(problem) or exact(problem))
    given = ("--recipe", "paper", "-r", "auto", "--option", "solver=exact", "--repair", "cr", "--json")
    code, out, err = run(capsys, "prune", *DIGITS, "-s", "0.9", *given)
    assert code == 0, err
    assert len(asked) == 2
    assert len(json.loads(out)["trials"]) == 5


def write_npz(path: Path, classes: int = 10, channels: int = 3) -> str:
    random = np.random.default_rng(0)
    np.savez(
        path,
        x_train=random.integers(0, 256, (150, channels, 16, 16), dtype=np.uint8),
        y_train=np.arange(150) % classes,
        x_test=random.integers(0, 256, (20, channels, 16, 16), dtype=np.uint8),
        y_test=np.arange(20) % classes,
    )
    return f"npz:{path.name}"


@pytest.mark.slow
def test_the_real_resnet20(shared: Path, cifar10_file: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = str(shared / "data" / "checkpoints" / "resnet20-12fca82f.th")
    given = ["resnet20", "--weights", weights, "--data", f"npz:{cifar10_file}"]
    code, out, _ = run(capsys, "prune", *given, "-s", "0.9", "--evaluate", "500", "--json", "--out", "p.safetensors")
    assert code == 0
    found = json.loads(out)
    assert found["evaluation"]["dense"]["top1"] > 0.88
    assert found["recipe"] == "strong"
    assert found["evaluation"]["pruned"]["top1"] > 0.75
    out = run(capsys, "evaluate", *given, "--checkpoint", "p.safetensors", "--limit", "500", "--json")[1]
    assert json.loads(out)["top1"] == found["evaluation"]["pruned"]["top1"]


BAD: list[tuple[list[str], str]] = [
    (["diagnose", "digits", "--data", "digit"], "unknown data set 'digit'; did you mean digits"),
    (["diagnose", "digits", "--data", "npz:missing.npz"], "no npz file at missing.npz"),
    (["diagnose", *DIGITS, "--grid", "0.9;0.95"], "--grid takes sparsities with commas between"),
    (["diagnose", *DIGITS, "--observe", "relu"], "observe must be one of"),
    (["diagnose", *DIGITS, "--repair", "magic"], "unknown repair 'magic'"),
    (["diagnose", *DIGITS, "--device", "cuda:7"], "device 'cuda:7' is not available here"),
    (["diagnose", *DIGITS, "--device", "gpu"], "device 'gpu' is not available here"),
    (["diagnose", *DIGITS, "--threads", "0"], "--threads must be at least 1"),
    (["diagnose", *DIGITS, "--count", "0"], "--count must be at least 1, not 0"),
    (["diagnose", *DIGITS, "--out", "no/such/d.json"], "cannot write"),
    (["diagnose", "digits", "--data", "npz:rgb.npz"], f"does not take a batch of shape ({PROBE}, 3, 16, 16)"),
    (["prune", *DIGITS, "-s", "1.2"], "sparsity must be between 0 and 1"),
    (["prune", *DIGITS, "-s", "0.9", "--curves", "missing.json"], "cannot read missing.json"),
    (["prune", *DIGITS, "-s", "0.9", "--weights", "missing.th"], "no weights file at missing.th"),
    (["prune", *DIGITS, "-s", "0.9", "--out", "no/such/p.safetensors"], "cannot write"),
    (["prune", *DIGITS, "-s", "0.9", "--num-classes", "7", "--evaluate", "9"], "has 7 outputs, digits has 10 classes"),
    (["prune", *DIGITS, "-s", "0.9", "--out", "p.st", "--report", "./p.st"], "--report and --out are the same, p.st"),
    (["prune", *DIGITS, "-s", "0.999", "--recipe", "paper"], "is above 99.50 %"),
    (["prune", *DIGITS, "-s", "0.9", "--recipe", "weak"], "unknown recipe 'weak'; known: fast, paper, strong"),
    (["prune", *DIGITS, "-s", "0.9", "--best", "--recipe", "fast"], "leave --recipe out"),
    (["prune", *DIGITS, "-s", "0.9", "--best", "--seconds", "-3"], "--seconds must be positive and finite, not -3"),
    (["prune", *DIGITS, "-s", "0.9", "--best", "--seconds", "inf"], "--seconds must be positive and finite, not inf"),
    (["prune", *DIGITS, "-s", "0.9", "--best", "--seconds", "0"], "--seconds must be positive and finite, not 0"),
    (["prune", *DIGITS, "-s", "0.9", "--best", "--seconds", "nan"], "--seconds must be positive and finite, not nan"),
    (["prune", *DIGITS, "-s", "0.9", "--seconds", "3"], "--seconds is for --best"),
    (["prune", *DIGITS, "-s", "0.9", "--best", "--rule", "rr"], "--best chooses rule, score and repair by itself"),
    (
        ["prune", *DIGITS, "-s", "0.9", "--best", "--score", "magnitude", "--repair", "bn"],
        "leave --score, --repair out",
    ),
    (["prune", *DIGITS, "-s", "0.9", "--best", "--option", "solver=exact"], "leave --option out"),
    (
        ["prune", *DIGITS, "-s", "0.9", "-r", "rr", "--option", "floor=0"],
        "rule 'rr' takes no option 'floor'; it takes: solver",
    ),
    (["prune", *DIGITS, "-s", "0.9", "-r", "auto", "--option", "flor=0"], "takes no option 'flor'"),
    (["prune", *DIGITS, "-s", "0.9", "-r", "forced"], "rule 'forced' needs pinned layers"),
    (["evaluate", "digits", "--data", "npz:rgb.npz"], "does not take a batch of shape"),
    (["evaluate", *DIGITS, "--num-classes", "7"], "has 7 outputs, digits has 10 classes"),
    (["evaluate", *DIGITS, "--agreement"], "give one, --checkpoint FILE"),
    (["evaluate", *DIGITS, "--checkpoint", "rgb.npz", "--out", "rgb.npz"], "--out and --checkpoint are the same"),
    (["evaluate", *DIGITS, "--checkpoint", "missing"], "no checkpoint at missing"),
    (["evaluate", *DIGITS, "--checkpoint", "rgb.npz"], "is truncated or not a safetensors file"),
    (["detect", *DIGITS, "--method", "magic"], "unknown method 'magic'"),
    (["detect", *DIGITS, "--seeds", "0"], "--seeds must be at least 1"),
    (["detect", *DIGITS, "--sparsities", "0.9 0.95"], "--sparsities takes sparsities with commas between"),
    (["detect", *DIGITS, "--low", "0.97", "--high", "0.9"], "low must be below high"),
    (["report", "missing.json"], "cannot read missing.json"),
    (["report", "rgb.npz"], "it is not a text file"),
    (["demo", "--seeds", "0"], "--seeds must be at least 1"),
    (["demo", "--out", "rgb.npz/below"], "cannot make the folder rgb.npz/below"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(x) for x, _ in BAD])
def test_bad_input_ends_in_one_line_and_code_2(
    arguments: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_npz(place / "rgb.npz")
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert any(part in err for part in message.split("|"))
    assert "Traceback" not in err
    assert os.listdir(place) == ["rgb.npz"]


STAGES = {
    "diagnose": [(DataSource, "read"), (rp, "CalibrationSet"), (rp, "diagnose"), (os, "fsync")],
    "prune": [(DataSource, "read"), (rp, "CalibrationSet"), (rp, "prune"), (rp, "evaluate"), (os, "fsync")],
    "evaluate": [(DataSource, "read"), (rp, "evaluate"), (os, "fsync")],
    "demo": [(demo, "run_demo"), (report, "write_report")],
}


@pytest.mark.parametrize(
    ("verb", "room", "stage"), [(verb, *stage) for verb, stages in STAGES.items() for stage in stages]
)
def test_ctrl_c_in_each_stage_leaves_nothing_half_written(
    verb: str,
    room: object,
    stage: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    record = ReportData(title="t", model="m", data="d")
    if verb == "demo":
        monkeypatch.setattr(demo, "run_demo", lambda **_: record)
    monkeypatch.setattr(room, stage, interrupt)
    more = {"prune": ["-s", "0.9", "--evaluate", "10"], "demo": [], "diagnose": [], "evaluate": ["--limit", "10"]}[verb]
    given = [verb, *([] if verb == "demo" else DIGITS), *more, "--out", "result"]
    code, _, err = run(capsys, *given)
    assert code == 130
    assert "interrupted" in err
    left = [str(f.relative_to(place)) for f in place.rglob("*") if f.is_file()]
    assert left in ([], ["result/demo.json"])  # the record is whole before the page is begun


@pytest.mark.parametrize("verb", ["diagnose", "prune", "evaluate", "report"])
def test_a_full_disk(
    verb: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("record.json").write_text(ReportData(title="t", model="m", data="d").to_json(), encoding="utf-8")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    given = {
        "diagnose": ["diagnose", *DIGITS],
        "prune": ["prune", *DIGITS, "-s", "0.9", "-r", "erk", "--repair", "none"],
        "evaluate": ["evaluate", *DIGITS, "--limit", "10"],
        "report": ["report", "record.json"],
    }[verb]
    code, _, err = run(capsys, *given, "--out", "result.html")
    assert code == 2
    assert "No space left on device" in err
    assert os.listdir(place) == ["record.json"]


STALLED = """
import sys, time
import repairability.pruning
from repairability import cli

def stalled(*args, **options):
    print("begun", file=sys.__stdout__, flush=True)
    time.sleep(60)

sys.modules["repairability.pruning.prune"].choose_masks = stalled
cli.main(sys.argv[1:])
"""


def test_a_real_ctrl_c(place: Path) -> None:
    """SIGINT to the process while it prunes: exit code 130, no file, no traceback."""
    command = [sys.executable, "-c", STALLED, "prune", *DIGITS, "-s", "0.9", "-r", "erk"]
    command += ["--score", "magnitude", "--out", "p.safetensors"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=interruptible)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert os.listdir(place) == []


def test_unreadable_checkpoints(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": torch.zeros(1)}, "other.pt")
    code, _, err = run(capsys, "evaluate", *DIGITS, "--checkpoint", "other.pt")
    assert code == 2
    assert "is truncated or not a safetensors file" in err


def test_prune_chooses_without_labels(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "prune", *DIGITS, "-s", "0.9", "--recipe", "fast", "--rule", "auto", "--json")
    assert code == 0
    found = json.loads(out)
    least = min((t for t in found["trials"] if t["kl"] is not None), key=lambda t: t["kl"])
    assert found["rule"] == least["rule"]
    code, out, _ = run(
        capsys, "prune", *DIGITS, "-s", "0.9", "--best", "--seconds", "0.01", "--out", "best.safetensors"
    )
    assert code == 0
    assert "alternating" in out
    assert "the 0.01 seconds are spent" in " ".join(out.split())
    assert Path("best.safetensors").exists()
    code, _, err = run(capsys, "prune", *DIGITS, "-s", "0.9", "--score", "second-order")
    assert code == 2
    assert "unknown score 'second-order'" in err


def test_diagnose_conditioned_on_a_refit(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("diagnose", *DIGITS, "--repair", "reconstruct", "--score", "second_order", "--grid", "0.8,0.9", "--json")
    code, out, _ = run(capsys, *words)
    assert code == 0
    found = json.loads(out)
    assert found["repair"] == "reconstruct"
    assert all(0 <= x["values"][0] <= x["values"][1] for x in found["residual"])


def test_damage_at_the_output_is_measured_and_allocated_by(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("diagnose", *DIGITS, "--grid", "0.5,0.8,0.9,0.95", "--out")
    code, out, _ = run(capsys, *words, "felt.json", "--output")
    assert code == 0
    assert out.splitlines()[0].split() == ["layer", "sparsity", "raw", "residual", "rr", "output"]
    code, out, _ = run(capsys, "allocate", "digits", "-s", "0.9", "--rule", "output", "--curves", "felt.json", "--json")
    assert code == 0
    assert json.loads(out)["rule"] == "output"
    assert run(capsys, *words, "plain.json")[0] == 0
    code, _, err = run(capsys, "allocate", "digits", "-s", "0.9", "--rule", "output", "--curves", "plain.json")
    assert code == 2
    assert "this diagnosis did not measure 'output'" in err
    code, _, err = run(capsys, "allocate", "digits", "-s", "0.9", "--rule", "output")
    assert code == 2
    assert "measures=('output',)" in " ".join(err.split())


def test_the_classes_are_those_that_the_network_puts_out(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not those of the linear layer that is named last."""
    write_npz(place / "ten.npz")
    write_npz(place / "four.npz", classes=4)
    code, out, err = run(capsys, "evaluate", "networks:HeadFirst", "--data", "npz:ten.npz", "--json")
    assert code == 0, err
    assert json.loads(out)["n"] == 20
    code, _, err = run(capsys, "evaluate", "networks:HeadFirst", "--data", "npz:four.npz")
    assert code == 2
    assert "networks:HeadFirst has 10 outputs, npz:four.npz has 4 classes; say --num-classes 4" in err


def test_images_without_labels_are_enough_but_for_accuracy(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(place / "images.npz", x_train=np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8))
    given = ("networks:small_net", "--data", "npz:images.npz")
    code, _, err = run(capsys, "prune", *given, "-s", "0.5", "--recipe", "fast", "--out", "p.safetensors")
    assert code == 0, err
    pruned = (*given, "--checkpoint", "p.safetensors")
    code, out, err = run(capsys, "evaluate", *pruned, "--agreement", "--json")
    assert code == 0, err
    assert json.loads(out)["agreement"]["n"] == 40
    assert "top1" not in json.loads(out)
    refused = {
        "--evaluate": ("prune", *given, "-s", "0.5", "--evaluate", "9", "--out", "q.safetensors"),
        "accuracy": ("evaluate", *pruned),
        "finetune": ("finetune", *given, "--from-scratch", "--out", "q.safetensors"),
    }
    for what, command in refused.items():
        code, _, err = run(capsys, *command)
        assert (code, f"error: {what} reads labels, and npz:images.npz has images alone" in err) == (2, True), err
        assert not (place / "q.safetensors").exists()


def test_what_is_said_of_random_weights(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A callable's network may hold weights; of a network that is none there is nothing to say."""
    write_npz(place / "ten.npz")
    data = ("--data", "npz:ten.npz", "--limit", "1")
    assert "random" not in run(capsys, "evaluate", "networks:small_net", *data)[2]
    assert "random" not in run(capsys, "evaluate", "resnet99", *data)[2]
    assert (
        "resnet20 has random weights (seed 0); --weights takes a file\n"
        in run(capsys, "evaluate", "resnet20", *data)[2]
    )
    given = ("--num-classes", "10", *data)
    assert "--weights takes a file or 'imagenet'\n" in run(capsys, "evaluate", "squeezenet1_1", *given)[2]


def test_random_weights_are_mentioned_and_trained_ones_are_at_hand(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "evaluate", *DIGITS, "--json")
    assert code == 0
    assert "digits has random weights (seed 0)" in err
    assert json.loads(out)["top1"] < 0.3
    code, out, err = run(capsys, "evaluate", *DIGITS, "--weights", "trained", "--json")
    assert code == 0
    assert "random" not in err
    assert json.loads(out)["top1"] > 0.9
    assert "random" not in run(capsys, "layers", "digits")[2]
    code, _, err = run(capsys, "evaluate", "resnet20", "--data", "digits", "--weights", "trained")
    assert code == 2
    assert "only digits is trained on the spot, not resnet20" in err
