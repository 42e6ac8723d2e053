"""What the recipes keep, and what they cost: accuracy, seconds, dense passes of the same images, peak memory.

    python benchmarks/strong.py SHARED DATA [resnet20 ...] [--sparsities 0.9,0.95] [--recipes strong,match]
        [--draws 3] [--first 0]

SHARED holds data/checkpoints; DATA what data/prepare.py writes (cifar10, cifar100, imagenet, resnet50), and for
resnet18_cifar10 and vgg16_quarter what `python -m reproduction networks DATA` trains. Labels are read for the accuracy
alone. The 1,300 ImageNet images are a subset that is easier than the whole validation set: what is
kept against dense counts there, with a standard error of about 1.1 points.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from choices import one_of
from timing import machine, seconds
from torch import Tensor, nn

import repairability as rp
from repairability import CalibrationSet, Recipe, create_model, evaluate, get_recipe, load_data, prune
from repairability.data import Data
from repairability.progress import track
from repairability.provenance import peak_memory
from repairability.tables import Table


@dataclass(frozen=True)
class Network:
    weights: str
    data: str
    classes: int
    images: int
    size: int | None = None
    model: str | None = None  # where its name here is not the name of the architecture

    def load(
        self, name: str, shared: Path, folder: Path, test: int | None = None
    ) -> tuple[nn.Module, Data, list[tuple[Tensor, Tensor]]]:
        """The trained network, its data, and test batches of the first `test` images."""
        places = (shared / "data" / "checkpoints" / self.weights, folder / self.weights)
        model = create_model(
            self.model or name, num_classes=self.classes, weights=next(x for x in places if x.exists())
        )
        data = load_data(f"npz:{folder / self.data}.npz", image_size=self.size)
        return model, data, list(data.test.batches(100, limit=test))


NETWORKS = {
    "resnet20": Network("resnet20-12fca82f.th", "cifar10", 10, 1024),
    "resnet32": Network("resnet32-d509ac18.th", "cifar10", 10, 1024),
    "resnet56": Network("resnet56-4bfd9763.th", "cifar10", 10, 1024),
    "resnet18": Network("resnet18_cifar100.safetensors", "cifar100", 100, 512, 64),
    "resnet18_cifar10": Network("resnet18_cifar10.safetensors", "cifar10", 10, 512, 64, "resnet18"),
    "vgg16_quarter": Network("vgg16_quarter_cifar10.safetensors", "cifar10", 10, 1024, None, "vgg16_bn_quarter"),
    "resnet50_v1": Network("resnet50_v1_imagenet.safetensors", "imagenet", 1000, 512),
}

STRONG = get_recipe("strong")
RECIPES: dict[str, Recipe] = {
    **rp.RECIPES,
    "unrepaired": Recipe("global", "magnitude", "none", {"over": "prunable"}, name="unrepaired"),
    "match": STRONG.with_parts(repair="rectified+match-crops"),
}


def rows_of(
    name: str, shared: Path, folder: Path, sparsities: list[float], recipes: list[str], draws: range, test: int | None
) -> list[tuple[str, ...]]:
    about = NETWORKS[name]
    model, data, batches = about.load(name, shared, folder, test)
    dense = evaluate(model, batches)
    first = data.unlabeled(about.images, seed=0)
    with torch.no_grad():
        one_pass = seconds(lambda: [model(batch) for batch in first.split(64)], 1)  # type: ignore[no-untyped-call]
    rows: list[tuple[str, ...]] = [(name, "", "dense", f"{100 * dense.top1:.2f}", "", f"{one_pass:.1f}", "1", "", "")]
    cells = [(sparsity, recipe) for sparsity in sparsities for recipe in recipes]
    for sparsity, recipe in track(cells, name, len(cells)):
        kept, spent, grown = [], [], []
        for draw in draws:
            calibration = CalibrationSet(data.unlabeled(about.images, seed=draw), 128)
            start = time.perf_counter()
            result = prune(model, calibration, sparsity=sparsity, recipe=RECIPES[recipe])
            spent.append(time.perf_counter() - start)
            grown.append((result.memory_mb or 0.0) / 2**10)
            kept.append(100 * evaluate(result.model, batches).top1)
        shown = " / ".join(f"{x:.2f}" for x in kept)
        least = min(spent)
        numbers = (f"{sum(kept) / len(kept):.2f}", f"{least:.1f}", f"{least / one_pass:.1f}")
        rows.append(
            (name, f"{100 * sparsity:g} %", recipe, numbers[0], shown, *numbers[1:], f"{max(grown):.1f}", _gib())
        )
        print("  ".join(rows[-1]), flush=True)
    return rows


def _gib() -> str:
    return f"{(peak_memory() or 0.0) / 2**10:.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What the recipes keep, and what they cost.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "networks", nargs="*", default=["resnet20"], type=one_of(NETWORKS), help=f"of {', '.join(NETWORKS)}"
    )
    parser.add_argument("--sparsities", default="0.9,0.95", help="separated by commas")
    parser.add_argument("--recipes", default="strong", help=f"of {', '.join(RECIPES)}")
    parser.add_argument("--draws", type=int, default=1, help="draws of unlabeled images")
    parser.add_argument("--first", type=int, default=0, help="the first of them, where earlier ones were measured")
    parser.add_argument("--test", type=int, help="only the first so many test images")
    given = parser.parse_args()
    table = [
        row
        for name in given.networks
        for row in rows_of(
            name,
            given.shared,
            given.data,
            [float(x) for x in given.sparsities.split(",")],
            given.recipes.split(","),
            range(given.first, given.first + given.draws),
            given.test,
        )
    ]
    columns = (
        "network",
        "sparsity",
        "recipe",
        "top-1",
        "draws",
        "seconds",
        "dense passes",
        "grown by, GiB",
        "peak so far, GiB",
    )
    print(Table(columns, table, machine()))
