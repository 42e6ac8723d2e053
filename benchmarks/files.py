"""What a pruned network takes on disk, and that nothing is lost on the way: bytes beside the entropy bound, gzip and
zstd of the dense file; load times; equal predictions of the compacted network, the sparse files, the
runtime and the ONNX file.

    python benchmarks/files.py SHARED DATA [resnet20 resnet18] [--sparsities 0.9,0.95,0.98] [--test 10000]

SHARED holds data/checkpoints; DATA what data/prepare.py writes (cifar10, cifar100). Networks are pruned by the recipe
`fast`. zstd is there where the package zstandard is, or Python 3.14.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import os
import tempfile
from functools import partial
from pathlib import Path

import torch
from strong import NETWORKS
from timing import machine, seconds
from torch import Tensor, nn

import repairability as rp
from repairability.checkpoints import VALUES
from repairability.data import Data
from repairability.progress import track
from repairability.tables import Table

SIZES = ("network", "sparsity", "values", "bytes", "bound", "above", "of which header", "dense", "gzip", "zstd")
TIMES = ("network", "sparsity", "load dense, ms", "float32", "float16", "int8", "save sparse, ms")
SAME = (
    "network",
    "sparsity",
    "images",
    "top-1",
    *VALUES,
    "runtime",
    "compact",
    "parameters",
    "blocks",
    "ONNX",
    "largest difference",
)


def zstd_bytes(content: bytes) -> str:
    """Its strongest ordinary level, where one of its packages is there."""
    for package in ("compression.zstd", "zstandard"):
        try:
            return f"{len(importlib.import_module(package).compress(content, 19)):,}"
        except ModuleNotFoundError:
            continue
    return "not installed"


def predictions(model: nn.Module, data: Data, test: int) -> tuple[Tensor, float]:
    """Of each image, and how many are right."""
    found, right = [], 0
    with torch.no_grad():
        for images, labels in track(data.test.batches(250, limit=test), "predicting", -(-test // 250)):
            found.append(model(images).argmax(1))
            right += int((found[-1] == labels).sum())
    return torch.cat(found), right / test


def rows_of(
    name: str, shared: Path, folder: Path, sparsities: list[float], test: int, work: Path
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]], list[tuple[str, ...]]]:
    about = NETWORKS[name]
    model = rp.create_model(
        name, num_classes=about.classes, weights=shared / "data" / "checkpoints" / about.weights
    ).eval()
    data = rp.load_data(f"npz:{folder / about.data}.npz", image_size=about.size)
    images = data.unlabeled(about.images, seed=0)
    sizes, times, same = [], [], []
    for sparsity in sparsities:
        result = rp.prune(model, images, sparsity=sparsity, recipe="fast")
        dense = work / "dense.safetensors"
        result.save(dense)
        content = dense.read_bytes()
        share = f"{100 * sparsity:g} %"
        others = [f"{len(content):,}", f"{len(gzip.compress(content, 9)):,}", zstd_bytes(content)]
        for values in VALUES:
            info = result.save(work / values, format="sparse", values=values)
            header = info.size - sum(row.bytes for row in info.rows)
            bound = (f"{info.bound:,.0f}", f"{100 * info.above:.2f} %", f"{header:,}")
            sizes.append((name, share, values, f"{info.size:,}", *bound, *others))
        load = [1000 * seconds(partial(rp.load, file, model)) for file in (dense, *(work / x for x in VALUES))]
        save = 1000 * seconds(partial(result.save, work / "float32", format="sparse"))
        times.append((name, share, *(f"{x:.1f}" for x in load), f"{save:.1f}"))
        if test:
            same.append((name, share, *equal(result, model, data, images, test, work)))
            print("  ".join(same[-1]), flush=True)
    return sizes, times, same


def equal(result: rp.PruneResult, model: nn.Module, data: Data, images: Tensor, test: int, work: Path) -> list[str]:
    """How many of the test images have the pruned network's own prediction, by each way of shipping it."""
    expected, top1 = predictions(result.model.eval(), data, test)

    def counted(network: nn.Module) -> str:
        return f"{int((predictions(network, data, test)[0] == expected).sum()):,}"

    files = [counted(rp.load(work / values, model).model.eval()) for values in VALUES]
    files.append(counted(rp.accelerate(result.model, images[:250])))
    small = rp.compact(result.model, images[:8])
    before, after = small.parameters
    checked = torch.cat([batch for batch, _ in data.test.batches(250, limit=test)])
    onnx = rp.export_onnx(small.model, images[:2], work / "net.onnx", check=checked)
    figures = [f"{test:,}", f"{100 * top1:.2f}", *files, counted(small.model), f"{after / before:.3f}"]
    return [*figures, str(len(small.blocks)), f"{onnx.same:,}", f"{onnx.difference:.1e}"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Bytes of pruned networks, and that nothing is lost.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("networks", nargs="*", default=["resnet20", "resnet18"])
    parser.add_argument("--sparsities", default="0.9,0.95,0.98", help="separated by commas")
    parser.add_argument("--test", type=int, default=10_000, help="test images whose predictions are compared; 0: none")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tables: list[list[tuple[str, ...]]] = [[], [], []]
    with tempfile.TemporaryDirectory() as folder:
        for name in given.networks:
            wanted = [float(x) for x in given.sparsities.split(",")]
            found = rows_of(name, given.shared, given.data, wanted, given.test, Path(os.fspath(folder)))
            for table, rows in zip(tables, found, strict=True):
                table += rows
    titles = ("bytes", "milliseconds, the best of five", "images with the pruned network's prediction")
    for columns, rows, title in zip((SIZES, TIMES, SAME), tables, titles, strict=True):
        if rows:
            print(Table(columns, rows, f"{title}: {machine()}"), end="\n\n")
