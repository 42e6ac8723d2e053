"""What a whole `diagnose` costs, in dense forward passes of the same images, and against the literal method.

    python benchmarks/diagnose.py            # cost (idle and beside a busy process), growth, memory
    python benchmarks/diagnose.py --cost [IMAGES]    # the cost alone; ResNet50 on so many images (128)
    python benchmarks/diagnose.py --memory MODEL SIZE IMAGES BATCH dense|diagnose   # used by itself

torchvision ResNet18 at 32 x 32 and ResNet50 at 224 x 224, random weights, 128 images, the paper's grid of 7.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from timing import machine, seconds
from torch import Tensor, nn

from repairability import CalibrationSet, allocate, create_model, diagnose, make_masks, prunable_layers
from repairability.diagnostics import GRID
from repairability.masks import apply_masks_
from repairability.provenance import peak_memory
from repairability.repairs import ChannelRepair, measure_statistics
from repairability.tables import Table


def images(count: int, size: int) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def dense_pass(model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        model(x)


def literal_cell(model: nn.Module, x: Tensor, layer: str, sparsity: float) -> None:
    """One cell of the literal method: copy the model, prune the layer, scale its channels, recalibrate every BatchNorm
    on 20 batches of 128, run the images through dense, pruned and repaired. (Without distances: in its favour.)
    """
    pruned = copy.deepcopy(model)
    layers = prunable_layers(pruned).subset([layer])
    apply_masks_(pruned, make_masks(layers, allocate(layers, sparsity=sparsity, rule="uniform")))
    calibration = CalibrationSet(x, count=len(x))
    dense_pass(model, x)
    dense_pass(pruned, x)
    variances = [measure_statistics(m, layers, calibration)[layer].var for m in (model, pruned)]
    with torch.no_grad():
        layers[0].weight.mul_(ChannelRepair().gamma(*variances).float().view(-1, 1, 1, 1))
        pruned.train()
        for _ in range(20):
            pruned(x)
    dense_pass(pruned.eval(), x)


@contextmanager
def busy() -> Iterator[None]:
    """Beside a process that keeps one core busy."""
    spinning = subprocess.Popen(
        [sys.executable, "-c", "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"]
    )
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()


def cost(name: str, size: int, count: int, batch: int, repeats: int) -> None:
    """A dense pass and a diagnosis, each alone and beside a busy process; a ratio to either dense pass. Minima, in
    turns, so that what else the machine does meets all alike.
    """
    model, x = create_model(name), images(count, size)
    calibration = CalibrationSet(x, count=count, batch_size=batch)

    def dense() -> None:
        for part in x.split(batch):  # type: ignore[no-untyped-call]
            dense_pass(model, part)

    load = os.getloadavg()[0]
    times: dict[tuple[str, str], float] = {}
    for _ in range(repeats):
        for beside, context in (("idle", nullcontext), ("busy", busy)):
            with context():
                for what, run in (("dense", dense), ("diagnose", lambda: diagnose(model, calibration))):
                    taken = seconds(run, 1)
                    times[what, beside] = min(taken, times.get((what, beside), taken))
    idle, loaded = times["dense", "idle"], times["dense", "busy"]
    rows = [
        ("dense forward pass", f"{idle:.3f}", "1.00", "", ""),
        ("diagnose", *_against(times["diagnose", "idle"], idle), "", "at most 6"),
        ("dense forward pass, beside a busy process", *_against(loaded, idle), "1.00", ""),
        (
            "diagnose, beside a busy process",
            *_against(times["diagnose", "busy"], idle),
            _against(times["diagnose", "busy"], loaded)[1],
            "at most 12",
        ),
    ]
    headings = (f"{name}, {count} images of {size} x {size}", "s", "ratio to idle dense", "to busy dense", "wanted")
    caption = f"load average before: {load:.1f}; idle is idle only where that is near 0"
    print(Table(headings, rows, machine(), caption))


def _against(time: float, dense: float) -> tuple[str, str]:
    return f"{time:.3f}", f"{time / dense:.2f}"


def literal(model: nn.Module) -> None:
    x = images(128, 32)
    whole = seconds(lambda: diagnose(model, x), 7)
    cells = len(prunable_layers(model)) * len(GRID)
    sample = [("layer1.0.conv1", 0.7), ("layer2.1.conv2", 0.9), ("layer4.1.conv2", 0.95)]
    start = time.perf_counter()
    for layer, sparsity in sample:
        literal_cell(model, x, layer, sparsity)
    every = (time.perf_counter() - start) / len(sample) * cells
    rows = [
        ("diagnose, everything", f"{whole:.3f}", "1", ""),
        (f"literal, from {len(sample)} of {cells} cells", f"{every:.1f}", f"{every / whole:.0f}", "at least 150"),
    ]
    print(Table(("ResNet18, 128 images of 32 x 32", "s", "ratio", "wanted"), rows, machine()))


def growth(model: nn.Module) -> None:
    """Per image, layer and grid point: the ratio to the smallest case divided by how much larger it is; 1 is linear."""
    layers = prunable_layers(model)
    names = [name for name in layers.names if name.startswith("layer3")]
    rows = []
    for count in (64, 128, 256, 512):
        x = CalibrationSet(images(count, 32), count=count, batch_size=64)
        rows.append(("images", count, seconds(lambda: diagnose(model, x), 3)))  # noqa: B023
    x = CalibrationSet(images(128, 32), count=128)
    for number in (1, 2, 3):  # layers of the same kind: 3 x 3, 256 channels
        chosen = layers.subset([names[1], *names[3:5]][:number])
        whole = seconds(lambda: diagnose(model, x, layers=chosen), 5)  # noqa: B023
        alone = whole - seconds(lambda: dense_pass(model, x.held.batches[0]), 5)
        rows.append(("layers (less the dense pass)", number, alone))
    for points in (7, 14, 28):
        grid = [0.7 + 0.275 * i / (points - 1) for i in range(points)]
        rows.append(("grid points", points, seconds(lambda: diagnose(model, x, grid=grid), 3)))  # noqa: B023
    first = {name: (n, t) for name, n, t in reversed(rows)}
    table = [
        (name, str(n), f"{t:.3f}", f"{t / first[name][1]:.2f}", f"{n / first[name][0]:.0f}") for name, n, t in rows
    ]
    print(Table(("growth of diagnose", "n", "s", "time ratio", "size ratio"), table))


def memory() -> None:
    """Peak memory in a process of its own: a dense pass, and a diagnosis of the same batches."""
    rows = []
    for name, size, count, batch in (("resnet18", 32, 128, 128), ("resnet50", 224, 64, 32)):
        peaks = [
            int(
                subprocess.run(
                    [sys.executable, __file__, "--memory", name, str(size), str(count), str(batch), what],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
            for what in ("dense", "diagnose")
        ]
        bound = largest_layer(create_model(name), images(batch, size))
        rows.append(
            (
                f"{name}, {count} of {size}, batch {batch}",
                *(f"{p / 2**20:.0f}" for p in (*peaks, peaks[1] - peaks[0], bound)),
            )
        )
    title = "Peak memory, MB; bound: the largest layer's unfolded input and stacked output for one batch"
    print(Table(("model", "dense pass", "diagnose", "extra", "bound"), rows, title))


def largest_layer(model: nn.Module, x: Tensor) -> int:
    sizes = []

    def watch(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        taps = module.kernel_size[0] * module.kernel_size[1]
        positions = output.shape[0] * output.shape[2] * output.shape[3]
        sizes.append(4 * positions * (module.in_channels * taps + len(GRID) * module.out_channels))

    handles = [model.get_submodule(layer.name).register_forward_hook(watch) for layer in prunable_layers(model)]
    dense_pass(model, x)
    for handle in handles:
        handle.remove()
    return max(sizes)


def measure_memory(name: str, size: str, count: str, batch: str, what: str) -> None:
    model = create_model(name)
    x = images(int(count), int(size))
    if what == "dense":
        for part in x.split(int(batch)):  # type: ignore[no-untyped-call]
            dense_pass(model, part)
    else:
        diagnose(model, CalibrationSet(x, count=int(count), batch_size=int(batch)))
    print(int((peak_memory() or 0.0) * 2**20))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What a diagnosis costs, in dense passes, seconds and memory.")
    parser.add_argument("--cost", nargs="?", type=int, const=128, metavar="IMAGES", help="only the costs; for ResNet50")
    parser.add_argument("--memory", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory:
        measure_memory(*given.memory)
        sys.exit()
    cost("resnet18", 32, 128, 128, repeats=5)
    print()
    cost("resnet50", 224, given.cost or 128, 32, repeats=2)
    if given.cost:
        sys.exit()
    print()
    network = create_model("resnet18")
    literal(network)
    print()
    growth(network)
    print()
    memory()
