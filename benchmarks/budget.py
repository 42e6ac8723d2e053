"""A speed that was asked for, measured; and its accuracy beside a network of the same speed by a budget of weights.

    python benchmarks/budget.py SHARED DATA [resnet18 resnet50_v1] [--speedup 2] [--recipe strong]

One image at a time, torch's threads (set OMP_NUM_THREADS). The second network is pruned by the same recipe and curves
to the weight sparsity at which its allocation is as fast. Labels are read for the accuracy alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from choices import one_of
from strong import NETWORKS
from timing import machine

import repairability as rp
from repairability import CalibrationSet, evaluate, prune
from repairability.deploy.pricing import time_of
from repairability.progress import track
from repairability.tables import Table, percent


def rows_of(
    name: str, shared: Path, folder: Path, speedup: float, recipe: str, test: int | None
) -> list[tuple[str, ...]]:
    about = NETWORKS[name]
    model, data, batches = about.load(name, shared, folder, test)
    images = data.unlabeled(about.images, seed=0)
    calibration = CalibrationSet(images, 128)
    layers = rp.prunable_layers(model, batch=images[:8])
    dense = rp.accelerate(model, images[:1])
    whole = evaluate(model, batches).top1
    rows: list[tuple[str, ...]] = [(name, "dense", "", "", f"{dense.ms:.2f}", "1.00", f"{100 * whole:.2f}")]

    def add(what: str, result: rp.PruneResult) -> None:
        fast = rp.accelerate(result.model, images[:1])
        kept = evaluate(result.model, batches).top1
        work = percent(result.work or 0.0)
        speed = f"{dense.ms / fast.ms:.2f}"
        rows.append((name, what, percent(result.sparsity), work, f"{fast.ms:.2f}", speed, f"{100 * kept:.2f}"))
        print("  ".join(rows[-1]), flush=True)

    timed = prune(model, calibration, speedup=speedup, recipe=recipe)
    add(f"speedup={speedup:g}", timed)
    low, high = 0.0, 0.995
    rule = rp.get_recipe(recipe).rule
    for _ in track(range(7), "the weight budget of the same speed", 7):
        middle = (low + high) / 2
        plan = rp.allocate(layers, sparsity=middle, rule=rule, curves=timed.diagnosis)
        slow = time_of(model, plan, images[:1], None) > dense.ms / speedup
        low, high = (middle, high) if slow else (low, middle)
    by_weights = prune(model, calibration, sparsity=high, recipe=recipe, curves=timed.diagnosis)
    add("weights, as fast", by_weights)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A speed that was asked for, measured.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "networks", nargs="*", default=["resnet18"], type=one_of(NETWORKS), help=f"of {', '.join(NETWORKS)}"
    )
    parser.add_argument("--speedup", type=float, default=2.0)
    parser.add_argument("--recipe", default="strong")
    parser.add_argument("--test", type=int, help="only the first so many test images")
    given = parser.parse_args()
    table = [
        row
        for name in given.networks
        for row in rows_of(name, given.shared, given.data, given.speedup, given.recipe, given.test)
    ]
    columns = ("network", "budget", "weights gone", "work gone", "ms", "times as fast", "top-1")
    print(Table(columns, table, f"recipe {given.recipe}; {machine()}"))
