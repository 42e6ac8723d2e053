"""How the strong recipe grows: seconds and memory against images and against layers.

    python benchmarks/growth.py [--images 128,256,512,1024] [--networks resnet20,resnet32,resnet44,resnet56]

CIFAR ResNets with random weights on random images: neither matters to the clock. Each cell runs in a process of its
own, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import torch
from timing import machine

from repairability import CalibrationSet, create_model, prunable_layers, prune
from repairability.progress import track
from repairability.tables import Table


def cell(network: str, count: int) -> dict[str, float]:
    """One pruning, after a small one that imports and warms up whatever there is."""
    torch.manual_seed(0)
    model = create_model(network, num_classes=10)
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, 32, 32, generator=draw)
    prune(model, CalibrationSet(images[:16], 16), sparsity=0.9)
    start = time.perf_counter()
    result = prune(model, CalibrationSet(images, 128), sparsity=0.9)
    spent = time.perf_counter() - start
    return {"layers": len(prunable_layers(model)), "seconds": spent, "mb": result.memory_mb or 0.0}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Seconds and memory against images and against layers.")
    parser.add_argument("--images", default="128,256,512,1024")
    parser.add_argument("--networks", default="resnet20,resnet32,resnet44,resnet56")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        print(json.dumps(cell(given.cell[0], int(given.cell[1]))))
        sys.exit()
    networks, counts = given.networks.split(","), [int(x) for x in given.images.split(",")]
    cells = [(networks[0], count) for count in counts] + [(network, 512) for network in networks[1:]]
    rows = []
    for network, count in track(cells, "growth", len(cells)):
        command = [sys.executable, __file__, "--cell", network, str(count)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        each = 1e3 * found["seconds"] / count
        layer = 1e3 * found["seconds"] / found["layers"]
        spent, memory = f"{found['seconds']:.1f}", f"{found['mb']:,.0f}"
        rows.append((network, f"{found['layers']:g}", str(count), spent, f"{each:.1f}", f"{layer:.0f}", memory))
    columns = ("network", "layers", "images", "seconds", "ms per image", "ms per layer", "memory grown by, MB")
    print(Table(columns, rows, machine()))
