"""Both detectors on the real networks of the shared folder, and how far they are from where accuracy is half lost.

    python benchmarks/transition.py SHARED DATA [resnet20|resnet56|resnet18 ...] [--only cts|agreement] [--out FILE]

SHARED holds data/checkpoints; DATA the npz files that data/prepare.py writes. Half-way: the sparsity at which the best
rule's test accuracy after CR+BN (1,000 labeled images, read by this script only) is half-way between dense and chance.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from choices import one_of
from timing import machine, seconds

from repairability import PruneConfig, create_model, evaluate, find_transition, load_data, prune_many
from repairability.detect import METHODS
from repairability.detect.verdict import COMPARED
from repairability.tables import Table
from repairability.transition import consensus

NETWORKS: dict[str, dict[str, Any]] = {
    "resnet20": {"weights": "resnet20-12fca82f.th", "data": "cifar10", "classes": 10, "size": None, "seeds": 3},
    "resnet56": {"weights": "resnet56-4bfd9763.th", "data": "cifar10", "classes": 10, "size": None, "seeds": 1},
    "resnet18": {
        "weights": "resnet18_cifar100.safetensors",
        "data": "cifar100",
        "classes": 100,
        "size": 64,
        "seeds": 1,
    },
}
CONFIG = PruneConfig(options={"floor": 0.0})  # ERK beyond 97.5 % too
SWEEP = (0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.985)


def words(interval: Any) -> str:
    return "none" if interval is None else f"{100 * interval[0]:g} to {100 * interval[1]:g}"


def halfway(accuracies: dict[float, float], dense: float, chance: float) -> float | None:
    """Where the accuracy crosses the middle between dense and chance, linear between sweep points."""
    middle = (dense + chance) / 2
    points = sorted(accuracies.items())
    for (s, before), (t, after) in itertools.pairwise(points):
        if before >= middle > after:
            return s + (t - s) * (before - middle) / (before - after)
    return None


def distance(core: Any, half: float | None) -> str:
    return "" if core is None or half is None else f"{100 * abs((core[0] + core[1]) / 2 - half):.1f}"


def study(name: str, shared: Path, folder: Path, detectors: list[str]) -> list[tuple[str, ...]]:
    about = NETWORKS[name]
    weights = shared / "data" / "checkpoints" / about["weights"]
    model = create_model(name, num_classes=about["classes"], weights=weights)
    data = load_data(f"npz:{folder / about['data']}.npz", image_size=about["size"])
    test = list(data.test.batches(limit=1000))
    dense = evaluate(model, test).top1
    rows: list[tuple[str, ...]] = []
    transitions = []
    for seed in range(about["seeds"] if "agreement" in detectors else 0):
        images = data.unlabeled(3968, seed)
        start = time.perf_counter()
        transitions.append(find_transition(model, images, method="agreement", sparsities=SWEEP))
        print(transitions[-1], f"\n{name} seed {seed}: {time.perf_counter() - start:.0f} s\n", flush=True)
    best: dict[float, float] = {}
    images = data.unlabeled(2688, 0)
    for result in prune_many(model, images, sparsities=SWEEP, recipe="paper", rules=COMPARED, config=CONFIG):
        target = float(result.allocation.target or 0)
        best[target] = max(best.get(target, 0.0), evaluate(result.model, test).top1)
    half = halfway(best, dense, 1 / about["classes"])
    print(f"{name}: dense {dense:.4f}, best rule after CR+BN {best}, half-way {half}", flush=True)
    for seed, transition in enumerate(transitions):
        null = ", ".join(f"{k} {v:.2f}" for k, v in transition.null.items())
        rows.append(
            (
                name,
                "agreement",
                str(seed),
                words(transition.core),
                words(transition.broad),
                null,
                distance(transition.core, half),
                "",
            )
        )
    images = data.unlabeled(128, 0)
    with torch.no_grad():
        one_pass = seconds(lambda: model(images), 5)
    cores = []
    for seed in range(3 if "cts" in detectors else 0):
        images = data.unlabeled(128, seed)
        transition = find_transition(model, images)
        cost = seconds(lambda: find_transition(model, images, null=False), 2) / one_pass  # noqa: B023
        cores.append(transition.core)
        null = ", ".join(f"{k} {v:.2f}" for k, v in transition.null.items())
        rows.append(
            (
                name,
                "cts",
                str(seed),
                words(transition.core),
                words(transition.broad),
                null,
                distance(transition.core, half),
                f"{cost:.1f}",
            )
        )
        print(name, "cts", consensus(cores, transition.sparsities), flush=True)
    rows.append(
        (name, "half-way", "", "" if half is None else f"{100 * half:.1f}", "", f"dense {100 * dense:.1f}", "", "")
    )
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description="Both detectors on real networks.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "networks", nargs="*", default=list(NETWORKS), type=one_of(NETWORKS), help=f"of {', '.join(NETWORKS)}"
    )
    parser.add_argument("--only", choices=METHODS, action="append")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table: list[tuple[str, ...]] = []
    for network in given.networks:
        table += study(network, given.shared, given.data, given.only or list(METHODS))
        columns = ("network", "detector", "seed", "core, %", "band, %", "null", "core to half-way", "dense passes")
        print(Table(columns, table, machine()), flush=True)
    if given.out:
        given.out.write_text(json.dumps(table), encoding="utf-8")
