"""The page docs/runtime.md: what its command makes of the records, and that the committed page is of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts import loaded

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
for name in ("timing", "choices"):
    loaded(BENCHMARKS, name)
runtime = loaded(BENCHMARKS, "runtime")


def record(network: str, sparsity: float, **more: Any) -> dict[str, Any]:
    times = {"torch": [4.0, 0.5], "openvino": [2.0, 0.125]}
    about = {"commit": "abc", "date": "2026-11-18", "hardware": "a machine", "rounds": 3}
    setting = {"network": network, "allocation": "uniform", "batch": 1, "threads": 1, "sparsity": sparsity}
    return {**setting, "ms": 1.0, "iqr": 0.25, **times, "speedup": 2.0, "own_parts": 0.9, **about, **more}


def test_a_row_for_each_network_and_a_table_for_each_setting() -> None:
    records = [record("one", 0.9), record("one", 0.95, ms=0.5, speedup=4.0, own_parts=1.03), record("two", 0.9)]
    page = runtime.page([*records, record("one", 0.9, batch=16, threads=2)])
    lines = [line for line in page.splitlines() if line.startswith(("| network", "| one", "| two"))]
    head, row, other = lines[:3]
    assert "| 90 % | 95 % | own parts |" in head
    assert "4.00 ± 0.50" in row
    assert "2.00 (1.00 ± 0.25) | 4.00 (0.50 ± 0.25) | 0.90 to 1.03" in row
    assert "not run" in other
    assert "## One image, 1 thread, masks uniform" in page
    assert "## 16 images, 2 threads, masks uniform" in page


def test_the_page_is_of_the_records() -> None:
    records = json.loads(runtime.RECORDS.read_text(encoding="utf-8"))
    assert runtime.page(records) == runtime.PAGE.read_text(encoding="utf-8")
