"""What reconstruct-all costs: seconds, peak memory, and as a multiple of one dense forward pass of its images.

    python benchmarks/reconstruct.py SHARED DATA [resnet20|resnet18|resnet50 ...] [--images N] [--only second_order]

SHARED holds data/checkpoints; DATA the npz files that data/prepare.py writes. No label is read. ResNet50 has random
weights and noise of 224 x 224: what it costs does not hang on what it knows.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from choices import one_of
from timing import machine, seconds
from torch import Tensor, nn

from repairability import CalibrationSet, create_model, load_data, prune
from repairability.provenance import peak_memory
from repairability.tables import Table

NETWORKS: dict[str, dict[str, Any]] = {
    "resnet20": {
        "weights": "resnet20-12fca82f.th",
        "data": "cifar10",
        "classes": 10,
        "size": None,
        "images": 1024,
        "at": 0.9,
    },
    "resnet18": {
        "weights": "resnet18_cifar100.safetensors",
        "data": "cifar100",
        "classes": 100,
        "size": 64,
        "images": 512,
        "at": 0.95,
    },
    "resnet50": {"weights": None, "data": None, "classes": 1000, "size": 224, "images": 64, "at": 0.95},
}
CASES = (
    ("magnitude", "reconstruct"),
    ("magnitude", "reconstruct-all"),
    ("second_order", "reconstruct"),
    ("second_order", "reconstruct-all"),
)


def network(name: str, shared: Path, folder: Path, count: int) -> tuple[nn.Module, Tensor]:
    about = NETWORKS[name]
    if about["weights"] is None:
        torch.manual_seed(0)
        return create_model(name, num_classes=about["classes"]), torch.randn(count, 3, about["size"], about["size"])
    weights = shared / "data" / "checkpoints" / about["weights"]
    model = create_model(name, num_classes=about["classes"], weights=weights)
    return model, load_data(f"npz:{folder / about['data']}.npz", image_size=about["size"]).unlabeled(count, 0)


def costs(name: str, shared: Path, folder: Path, count: int | None, only: str | None) -> list[tuple[str, ...]]:
    about = NETWORKS[name]
    count = count or about["images"]
    model, images = network(name, shared, folder, count)
    with torch.no_grad():
        one_pass = seconds(lambda: [model(batch) for batch in images.split(128)], 3)  # type: ignore[no-untyped-call]
    calibration = CalibrationSet(images, min(128, count))
    rows: list[tuple[str, ...]] = []
    for score, repair in (case for case in CASES if only in (None, case[0])):
        start = time.perf_counter()
        prune(model, calibration, sparsity=about["at"], rule="erk", score=score, repair=repair)
        spent = time.perf_counter() - start
        peak = (peak_memory() or 0.0) / 2**10
        numbers = (f"{spent:.1f}", f"{spent / one_pass:.1f}", f"{peak:.1f}")
        rows.append((name, f"{count:,}", f"{100 * about['at']:g} %", score, repair, *numbers))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What reconstruction costs.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "networks", nargs="*", default=["resnet20", "resnet18"], type=one_of(NETWORKS), help=f"of {', '.join(NETWORKS)}"
    )
    parser.add_argument("--images", type=int, help="unlabeled images, if not the usual number of the network")
    parser.add_argument("--only", choices=("magnitude", "second_order"), help="one score")
    given = parser.parse_args()
    table = [row for name in given.networks for row in costs(name, given.shared, given.data, given.images, given.only)]
    columns = ("network", "images", "sparsity", "score", "repair", "seconds", "dense passes", "peak memory so far, GiB")
    print(Table(columns, table, machine()))
