from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from repairability import MissingExtraError, PruneResult, create_model, demo
from repairability.demo import run_demo
from repairability.report import ReportData
from repairability.rules import PAPER_RULES
from test_cli import run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def record() -> ReportData:
    cache = Path(__file__).parents[1] / ".cache" / "demo"
    sparsities = (0.94, 0.95, 0.96, 0.97)
    return run_demo(seeds=(0,), sparsities=sparsities, recipe_sparsities=(0.5, 0.95, 0.97), cache=cache)


def test_the_story_is_true_and_interesting(record: ReportData) -> None:
    """At two or more consecutive sweep points the rules differ by more than two standard errors (of a difference) while
    the best keeps between 30 and 90 % of the dense accuracy.
    """
    assert record.dense is not None
    points = []
    for sparsity in sorted({row["sparsity"] for row in record.results}):
        scores = [row["top1"] for row in record.results if row["sparsity"] == sparsity]
        best, worst, n = max(scores), min(scores), record.dense["n"]
        error = (best * (1 - best) / n + worst * (1 - worst) / n) ** 0.5
        points.append(best - worst > 2 * error and 0.3 <= best / record.dense["top1"] <= 0.9)
    assert any(a and b for a, b in itertools.pairwise(points)), points


def test_the_record_is_whole(record: ReportData) -> None:
    assert len(record.results) == 4 * len(PAPER_RULES)
    assert {row["rule"] for row in record.results} == set(PAPER_RULES)
    assert record.dense is not None
    assert record.dense["top1"] > 0.97
    assert record.dense["top1_bn"] > 0.95
    assert {allocation.rule for allocation in record.allocations} == set(PAPER_RULES)
    assert record.projections == ("layer2.0.shortcut.0", "layer3.0.shortcut.0")
    assert record.diagnosis is not None
    assert len(record.diagnosis.rr) == 14
    assert {"commit", "hardware", "seeds"} <= record.provenance.keys()
    assert ReportData.from_json(record.to_json()) == record


def test_the_strong_recipe_is_the_story(record: ReportData) -> None:
    """At 97 % it keeps what the paper's loses, by more than two standard errors of a difference."""
    assert [row["recipe"] for row in record.recipes] == ["magnitude alone"] * 3 + ["paper"] * 3 + ["strong"] * 3
    top1 = {(row["recipe"], row["sparsity"]): row["top1"] for row in record.recipes}
    for sparsity in (0.95, 0.97):
        paper, strong, n = top1["paper", sparsity], top1["strong", sparsity], record.recipes[0]["n"]
        assert strong - paper > 2 * ((paper * (1 - paper) + strong * (1 - strong)) / n) ** 0.5
    of_rules = {row["sparsity"]: row["top1"] for row in record.results if row["rule"] == "rr"}
    assert top1["paper", 0.95] == of_rules[0.95]  # one recipe, one number


def test_bytes_and_milliseconds(record: ReportData) -> None:
    assert [row["sparsity"] for row in record.shipped] == [0.5, 0.95, 0.97]
    sparse = [row["sparse_bytes"] for row in record.shipped]
    assert sparse == sorted(sparse, reverse=True)
    for row in record.shipped:
        assert row["sparse_bytes"] < row["dense_bytes"]
        assert len(row["ms"]) == len(row["plain_ms"]) == 3


def test_without_the_runtime_it_says_so(result: PruneResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise MissingExtraError("numba", "runtime")

    monkeypatch.setattr(demo, "accelerate", absent)
    (row, _), problem = demo._shipped([result, result], torch.zeros(1, 3, 9, 9))
    assert (row["ms"], row["plain_ms"]) == ([], [])
    assert row["sparse_bytes"] < row["dense_bytes"]
    assert problem == f"no milliseconds: {MissingExtraError('numba', 'runtime')}"


def test_it_ends_with_what_to_do_next(
    record: ReportData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "run_demo", lambda **_: record)
    code, out, _ = run(capsys, "demo", "--out", str(tmp_path / "d"))
    assert code == 0
    assert [line.strip() for line in out.splitlines()[-3:]] == list(demo.NEXT)
    assert [command.split()[1] for command in demo.NEXT] == ["doctor", "prune", "accelerate"]
    assert out.startswith("Top-1 accuracy by recipe")
    assert "What a recipe is worth" in (tmp_path / "d" / "demo.html").read_text(encoding="utf-8")


def test_the_next_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they are printed, with a network, weights and images where they say."""
    monkeypatch.chdir(tmp_path)
    lines = ["from torch import nn", "def build():", "    body = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)]"]
    lines += ["    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))", ""]
    (tmp_path / "my_model.py").write_text("\n".join(lines), encoding="utf-8")
    save_file(create_model("my_model.py:build").state_dict(), "weights.safetensors")
    random = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "images" / part / name).mkdir(parents=True)
            for i in range(8):
                pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / part / name / f"{i}.png")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few images
        for command in demo.NEXT:
            code, _, err = run(capsys, *command.split()[1:])
            assert code == 0, err
    assert (tmp_path / "page.html").exists()
