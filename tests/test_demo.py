from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from repairability.demo import run_demo
from repairability.report import ReportData
from repairability.rules import PAPER_RULES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def record() -> ReportData:
    cache = Path(__file__).parents[1] / ".cache" / "demo"
    return run_demo(seeds=(0,), sparsities=(0.94, 0.95, 0.96, 0.97), cache=cache)


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
