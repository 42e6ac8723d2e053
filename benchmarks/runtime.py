"""The sparse CPU runtime beside the dense ones, in one run: medians and interquartile ranges of interleaved calls.

    python benchmarks/runtime.py [resnet18 ...] [--sparsities 0.9,0.95] [--allocations uniform,erk] [--batches 1,16]
                                 [--threads 1,2] [--rounds 15] [--without compile] [--records FILE] [--here] [--write]

Weights are random, so magnitude masks are random masks; the stem and the classifier stay dense. Beside ours:
torch eager (BatchNorm folded, channels last), torch.compile, onnxruntime and OpenVINO (float32), each on the network of
the first sparsity, since to them a zero is a number like any other. "own parts": our time over the better of all layers
dense and all layers sparse by our own kernels. With --records what is in FILE is not measured again, and what is
measured goes there, so an interrupted run goes on; what another machine measured counts as measured, but with --here.
--write prints the page docs/runtime.md from benchmarks/runtime.json alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from choices import one_of
from timing import machine
from torch import Tensor, nn

import repairability as rp
from repairability._files import write_atomically
from repairability._torch import evaluation_mode_
from repairability._vision import torchvision
from repairability.network.folding import for_inference
from repairability.provenance import provenance
from repairability.report.markup import to_markdown
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
    return {
        name: (round(float(middle), 4), round(float(high - low), 4)) for name, (low, middle, high) in ranges.items()
    }


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
            if kernels == "dense" and sparsity != sparsities[0]:  # zeros are numbers to these kernels, too
                continue
            fast = rp.accelerate(model, images, threads=threads, kernels=kernels)
            calls[f"{sparsity} {kernels}"] = lambda fast=fast: fast(images)  # type: ignore[misc]
            if kernels == "measured":
                ways[sparsity] = fast.way
    times = interleaved(calls, rounds)
    commit, today = provenance()["commit"], datetime.now(timezone.utc).date().isoformat()
    measured = {"commit": commit, "date": today, "hardware": machine()}
    records = []
    for sparsity in sparsities:
        own = {kernels: times[f"{sparsity} {kernels}"] for kernels in ("measured", "sparse")}
        own["dense"] = times[f"{sparsities[0]} dense"]
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
                "speedup": round(times[best][0] / own["measured"][0], 3),
                "own_parts": round(own["measured"][0] / min(own["dense"][0], own["sparse"][0]), 3),
                "rounds": rounds,
                **measured,
            }
        )
    return records


def table(records: list[dict[str, Any]]) -> Table:
    columns = ("network", "masks", "batch", "threads", "sparsity", *DENSE, "ours", "way", "times the best", "own parts")
    rows = [
        (
            *(str(record[key]) for key in ("network", "allocation", "batch", "threads", "sparsity")),
            *(_pair(record.get(runtime)) for runtime in DENSE),
            _pair((record["ms"], record["iqr"])),
            record["way"],
            f"{record['speedup']:.2f}",
            f"{record['own_parts']:.2f}",
        )
        for record in records
    ]
    return Table(columns, rows, machine(), "milliseconds: median ± interquartile range")


RECORDS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "runtime.md"
INTRODUCTION = """\
How many times as fast as the fastest dense runtime of the same run (torch eager, torch.compile, onnxruntime, OpenVINO;
float32) `rp.accelerate` runs a pruned network on this CPU. Random weights and magnitude masks, the stem and the
classifier dense; `uniform`: every layer alike, `erk`: as that rule allocates (without a floor), which keeps more of the
early layers and so more of the work. Medians of interleaved calls ± their interquartile range. *Own parts*: the time
over the better of all layers dense and all layers sparse by our own kernels; 1 is as good as the better one. A dash:
left out. "AMD EPYC" alone and 26/2 have Zen 5 cores, 25/17 Zen 4's.
`python benchmarks/runtime.py --records benchmarks/runtime.json` measures, `--write` prints this page from there.
[Shipping](shipping.md) says how to use it."""


def page(records: list[dict[str, Any]]) -> str:
    """A table for each number of threads, images and kind of masks; a row for each network and machine."""
    parts = ["# The runtime, measured", INTRODUCTION]
    for threads, batch, rule in dict.fromkeys((r["threads"], r["batch"], r["allocation"]) for r in records):
        chosen = [r for r in records if (r["threads"], r["batch"], r["allocation"]) == (threads, batch, rule)]
        sparsities = sorted({r["sparsity"] for r in chosen})
        rows = []
        machines = sorted({_processor(r) for r in chosen})
        for name, processor in dict.fromkeys((r["network"], _processor(r)) for r in chosen):
            own = {r["sparsity"]: r for r in chosen if (r["network"], _processor(r)) == (name, processor)}
            first = next(iter(own.values()))
            dense = {runtime: first[runtime] for runtime in DENSE if runtime in first}
            cells = [
                f"{own[s]['speedup']:.2f} ({_pair((own[s]['ms'], own[s]['iqr']))})" if s in own else "not run"
                for s in sparsities
            ]
            parts_of = (
                f"{min(r['own_parts'] for r in own.values()):.2f} to {max(r['own_parts'] for r in own.values()):.2f}"
            )
            label = name if len(machines) == 1 else f"{name} ({processor})"
            rows.append((label, *(_pair(dense.get(x)) for x in DENSE), *cells, parts_of))
        images = "one image" if batch == 1 else f"{batch} images"
        title = f"{images}, {threads} thread{'s' * (threads > 1)}, masks {rule}"
        columns = ("network", *(f"{x}, ms" for x in DENSE), *(f"{100 * s:g} %" for s in sparsities), "own parts")
        where = {
            key: ", ".join(sorted({str(r[key]) for r in chosen})) for key in ("commit", "date", "hardware", "rounds")
        }
        caption = "Times as fast (ms). Rounds: {rounds}; commit {commit}; {date}; {hardware}".format(**where)
        parts += [f"## {title[0].upper()}{title[1:]}", to_markdown(Table(columns, rows, caption=caption)).strip()]
    return "\n\n".join(parts) + "\n"


def _processor(record: dict[str, Any]) -> str:
    """Of "AMD EPYC, 2 threads, torch 2.13.0": the first part."""
    return str(record["hardware"].split(",")[0])


def _pair(value: tuple[float, float] | None) -> str:
    return "-" if value is None else f"{value[0]:.2f} ± {value[1]:.2f}"


def listed(kind: type) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description="The sparse CPU runtime beside the dense ones.")
    parser.add_argument(
        "networks", nargs="*", type=one_of(NETWORKS), default=list(NETWORKS), help=f"of {', '.join(NETWORKS)}"
    )
    parser.add_argument("--sparsities", type=listed(float), default=[0.8, 0.9, 0.95, 0.98])
    parser.add_argument("--allocations", type=listed(str), default=["uniform", "erk"])
    parser.add_argument("--batches", type=listed(int), default=[1, 16])
    parser.add_argument("--threads", type=listed(int), default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--without", choices=DENSE, action="append", default=[])
    parser.add_argument("--records", type=Path, help="a JSON file to go on from and to write")
    parser.add_argument("--here", action="store_true", help="measure anew what only another machine measured")
    parser.add_argument("--write", action="store_true", help=f"measure nothing: the page from {RECORDS.name}")
    given = parser.parse_args()
    if given.write:
        PAGE.write_text(page(json.loads(RECORDS.read_text(encoding="utf-8"))), encoding="utf-8")
        sys.exit()
    found: list[dict[str, Any]] = []
    if given.records and given.records.exists():
        found = json.loads(given.records.read_text(encoding="utf-8"))
    counted = [r for r in found if not given.here or _processor(r) == machine().split(",")[0]]
    known = {(r["network"], r["allocation"], r["batch"], r["threads"], r["sparsity"]) for r in counted}
    with torch.inference_mode():
        for count in given.threads:
            torch.set_num_threads(count)
            for name in given.networks:
                for rule in given.allocations:
                    for batch in given.batches:
                        left = [s for s in given.sparsities if (name, rule, batch, count, s) not in known]
                        if not left:
                            continue
                        new = compared(name, rule, left, batch, count, given.rounds, given.without)
                        found += new
                        print(table(new), flush=True)
                        gc.collect()
                        if given.records:
                            lines = ",\n".join(json.dumps(record) for record in found)
                            write_atomically(given.records, f"[\n{lines}\n]\n".encode())
    print(table(found))
