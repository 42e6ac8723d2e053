"""What each simplification of the strong recipe keeps and costs.

    python benchmarks/ablation.py SHARED DATA [resnet20] [--sparsity 0.95] [--draws 2] [--parts budget,trials,repair]

budget: input columns for each unknown of a refit (64 in the recipe). trials: how much the measure `output` looks at the
network's output (one pass of small batches, up to seven levels a layer). repair: the rule `output` under the paper's
repair, beside the rules that measure at the layer. Settings that are no option are changed in the module that holds
them. Labels are read for the accuracy alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from strong import NETWORKS
from timing import machine

import repairability as rp
from repairability import CalibrationSet, Recipe, evaluate, get_recipe, prune
from repairability.diagnostics import output
from repairability.progress import track
from repairability.repairs import get_repair
from repairability.tables import Table

STRONG, PAPER = get_recipe("strong"), get_recipe("paper")
RECTIFIED: Any = get_repair("rectified")

Variant = tuple[str, Recipe, dict[str, Any]]

PARTS: dict[str, list[Variant]] = {
    "budget": [
        (f"{columns} columns per unknown", STRONG.with_parts(repair=replace(RECTIFIED, budget=float(columns))), {})
        for columns in (4, 16, 32, 64, 128)
    ],
    "trials": [
        ("no trials: rule erk", STRONG.with_parts(rule="erk"), {}),
        ("no trials: rule residual", STRONG.with_parts(rule="residual"), {}),
        ("one level, a quarter pass", STRONG, {"MOST_LEVELS": 1, "PASSES": 0.25, "FEWEST": 1}),
        ("two levels, half a pass", STRONG, {"MOST_LEVELS": 2, "PASSES": 0.5}),
        ("seven levels, one pass (the recipe)", STRONG, {}),
        ("seven levels, four passes", STRONG, {"PASSES": 4}),
    ],
    "repair": [(f"cr+bn, rule {rule}", PAPER.with_parts(rule=rule), {}) for rule in ("rr", "erk", "lamp", "output")],
}


@contextmanager
def changed(settings: dict[str, Any]) -> Iterator[None]:
    before = {name: getattr(output, name) for name in settings}
    try:
        for name, value in settings.items():
            setattr(output, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(output, name, value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What each simplification of the strong recipe keeps and costs.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("network", nargs="?", default="resnet20", choices=NETWORKS)
    parser.add_argument("--sparsity", type=float, default=0.95)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    given = parser.parse_args()
    about = NETWORKS[given.network]
    model, data, batches = about.load(given.network, given.shared, given.data)
    variants = [(part, *variant) for part in given.parts.split(",") for variant in PARTS[part]]
    rows = []
    for part, name, recipe, settings in track(variants, "variants", len(variants)):
        kept, spent = [], []
        for draw in range(given.draws):
            many = 128 + 2560 if part == "repair" else about.images  # BatchNorm takes 2,560 behind the statistics' 128
            calibration = CalibrationSet(data.unlabeled(many, seed=draw), 128)
            with changed(settings):
                start = time.perf_counter()
                result: rp.PruneResult = prune(model, calibration, sparsity=given.sparsity, recipe=recipe)
                spent.append(time.perf_counter() - start)
            kept.append(100 * evaluate(result.model, batches).top1)
        shown = " / ".join(f"{x:.2f}" for x in kept)
        rows.append((part, name, f"{sum(kept) / len(kept):.2f}", shown, f"{min(spent):.1f}"))
        print("  ".join(rows[-1]), flush=True)
    columns = ("part", "variant", "top-1", "draws", "seconds")
    caption = f"{given.network} / {about.data} at {100 * given.sparsity:g} %, 10,000 test images; {machine()}"
    print(Table(columns, rows, caption + f"; {torch.get_num_threads()} threads"))
