"""The sparse CPU runtime beside the dense ones, in one run: medians and interquartile ranges of interleaved calls.

    python benchmarks/runtime.py [resnet18 ...] [--sparsities 0.9,0.95] [--allocations uniform,erk] [--batches 1,16]
                                 [--threads 1,2] [--rounds 15] [--without compile] [--out FILE]

Weights are random, so magnitude masks are random masks; the stem and the classifier stay dense. Beside ours:
torch eager (BatchNorm folded, channels last), torch.compile, onnxruntime and OpenVINO (float32), each on the network of
the first sparsity, since to them a zero is a number like any other. "own parts": our time over the better of all layers
dense and all layers sparse by our own kernels.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import machine
from torch import Tensor, nn

import repairability as rp
from repairability._torch import evaluation_mode_
from repairability._vision import torchvision
from repairability.network.folding import for_inference
from repairability.tables import Table

NETWORKS = {
    "resnet18": 224,
    "resnet50": 224,
    "vgg16_bn": 224,
    "resnet20": 32,
    "resnet56": 32,
    "mobilenet_v2": 224,
    "vit_tiny": 224,
}
"""Each with the side of its images."""

Call = Callable[[], object]


def network(name: str, sparsity: float, rule: str) -> nn.Module:
    """Pruned by magnitude; what stays is scaled up, so that activations neither vanish nor grow."""
    if name == "vit_tiny":
        torchvision("models")
        import timm

        torch.manual_seed(0)
        model: nn.Module = evaluation_mode_(timm.create_model("vit_tiny_patch16_224"))
    else:
        model = rp.create_model(name, seed=0)
    options: dict[str, Any] = {"floor": 0.0} if rule == "erk" else {}  # so that it reaches 98 %
    masks = rp.make_masks(model, rp.allocate(model, sparsity=sparsity, rule=rule, **options))
    rp.apply_masks_(model, masks)
    with torch.no_grad():
        for layer, mask in masks.items():
            weight = model.get_submodule(layer).weight
            assert isinstance(weight, Tensor)
            weight.mul_(float((mask.numel() / max(1, int(mask.sum()))) ** 0.5))
    return model


def eager(model: nn.Module, images: Tensor, threads: int) -> Call:
    fast = for_inference(model, images)
    laid = images.to(memory_format=torch.channels_last)
    return lambda: fast(laid)


def compiled(model: nn.Module, images: Tensor, threads: int) -> Call:
    fast: Any = torch.compile(for_inference(model, images))
    laid = images.to(memory_format=torch.channels_last)
    return lambda: fast(laid)


def exported(model: nn.Module, images: Tensor) -> bytes:
    """As ONNX."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.onnx"
        torch.onnx.export(model, (images,), file, dynamo=False)
        return file.read_bytes()


def onnxruntime(model: nn.Module, images: Tensor, threads: int) -> Call:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    session = ort.InferenceSession(exported(model, images), settings, providers=["CPUExecutionProvider"])
    name, given = session.get_inputs()[0].name, images.numpy()
    return lambda: session.run(None, {name: given})


def openvino(model: nn.Module, images: Tensor, threads: int) -> Call:
    import openvino as ov

    converted = ov.Core().read_model(exported(model, images))
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    ready, given = ov.Core().compile_model(converted, "CPU", settings), images.numpy()
    return lambda: ready(given)


DENSE: dict[str, Callable[[nn.Module, Tensor, int], Call]] = {
    "torch": eager,
    "compile": compiled,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


def interleaved(calls: dict[str, Call], rounds: int) -> dict[str, tuple[float, float]]:
    """Median and interquartile range in milliseconds. Each turn is one call to warm the caches and two that count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            for _ in range(2):
                start = time.perf_counter()
                call()
                times[name].append(1e3 * (time.perf_counter() - start))
    ranges = {name: np.percentile(taken, [25, 50, 75]) for name, taken in times.items()}
    return {name: (float(middle), float(high - low)) for name, (low, middle, high) in ranges.items()}


def compared(
    name: str, rule: str, sparsities: list[float], batch: int, threads: int, rounds: int, without: list[str]
) -> list[dict[str, Any]]:
    """A record for each sparsity."""
    side = NETWORKS[name]
    images = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
    models = {sparsity: network(name, sparsity, rule) for sparsity in sparsities}
    calls: dict[str, Call] = {}
    for runtime, build in DENSE.items():
        if runtime in without:
            continue
        try:
            call = build(models[sparsities[0]], images, threads)
            call()
            calls[runtime] = call
        except Exception as error:
            print(
                f"{name}: {runtime} is left out: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True
            )
    dense, ways = list(calls), {}
    for sparsity, model in models.items():
        for kernels in ("measured", "dense", "sparse"):
            fast = rp.accelerate(model, images, threads=threads, kernels=kernels)
            calls[f"{sparsity} {kernels}"] = lambda fast=fast: fast(images)  # type: ignore[misc]
            if kernels == "measured":
                ways[sparsity] = fast.way
    times = interleaved(calls, rounds)
    records = []
    for sparsity in sparsities:
        own = {kernels: times[f"{sparsity} {kernels}"] for kernels in ("measured", "dense", "sparse")}
        best = min(dense, key=lambda runtime: times[runtime][0])
        records.append(
            {
                "network": name,
                "allocation": rule,
                "batch": batch,
                "threads": threads,
                "sparsity": sparsity,
                "way": ways[sparsity],
                "ms": own["measured"][0],
                "iqr": own["measured"][1],
                **{runtime: times[runtime] for runtime in dense},
                "best": best,
                "speedup": times[best][0] / own["measured"][0],
                "own_parts": own["measured"][0] / min(own["dense"][0], own["sparse"][0]),
            }
        )
    return records


def table(records: list[dict[str, Any]]) -> Table:
    def pair(value: tuple[float, float] | None) -> str:
        return "" if value is None else f"{value[0]:.2f} ± {value[1]:.2f}"

    columns = ("network", "masks", "batch", "threads", "sparsity", *DENSE, "ours", "way", "times the best", "own parts")
    rows = [
        (
            *(str(record[key]) for key in ("network", "allocation", "batch", "threads", "sparsity")),
            *(pair(record.get(runtime)) for runtime in DENSE),
            pair((record["ms"], record["iqr"])),
            record["way"],
            f"{record['speedup']:.2f}",
            f"{record['own_parts']:.2f}",
        )
        for record in records
    ]
    return Table(columns, rows, machine(), "milliseconds: median ± interquartile range")


def listed(kind: type) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description="The sparse CPU runtime beside the dense ones.")
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--sparsities", type=listed(float), default=[0.8, 0.9, 0.95, 0.98])
    parser.add_argument("--allocations", type=listed(str), default=["uniform", "erk"])
    parser.add_argument("--batches", type=listed(int), default=[1, 16])
    parser.add_argument("--threads", type=listed(int), default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--without", choices=DENSE, action="append", default=[])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    with torch.inference_mode():
        for count in given.threads:
            torch.set_num_threads(count)
            for name in given.networks:
                for rule in given.allocations:
                    for batch in given.batches:
                        settings = (given.sparsities, batch, count, given.rounds, given.without)
                        new = compared(name, rule, *settings)
                        found += new
                        print(table(new), flush=True)
                        gc.collect()
                        if given.out:
                            given.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(table(found))
