"""What a peer's environment runs: one piece of work with the same network, images and test set for every peer.

    python with_NAME.py SHARED DATA --network resnet18 --entry ENTRY --sparsity 0.95 --out FILE

Each `with_NAME.py` names its entries and calls `main`. The library reads networks, images and test sets and counts
what is right, for all peers alike; nothing else of it is used, but by its own entries.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from records import OURS
from torch import Tensor, nn

import repairability as rp
from repairability._vision import torchvision
from repairability.provenance import forget_peak_memory, hardware, peak_memory

BENCHMARKS = Path(__file__).resolve().parents[1]
BATCH = 128
"""Images a batch, for whoever takes batches."""

SEED = 0
REPEATS = {"masks": 7, "seconds": 3, "accuracy": 1}
"""How often a piece of work is timed: the median counts."""

Prune = Callable[[nn.Module, list[str], list[Tensor], float], nn.Module]
"""(a copy that may be changed, names of the layers to prune, unlabeled batches, sparsity) -> the pruned network."""


@dataclass(frozen=True)
class Entry:
    """A way to prune, as a user of the peer would write it.

    `masks`, where it is given, is the same without recovery: what allocation and masks alone take. `networks` are
    those it is scored on; magnitude by layer, the same with every peer, is scored once.
    """

    prune: Prune
    masks: Callable[[nn.Module, list[str], float], object] | None = None
    networks: tuple[str, ...] = ("resnet20", "resnet18")


@dataclass(frozen=True)
class Loaded:
    model: nn.Module
    layers: list[str]
    images: list[Tensor]
    score: Callable[[nn.Module], float]
    about: str


def vision(name: str, weights: str, data: str, classes: int, count: int, size: int | None) -> Callable[..., Loaded]:
    def load(shared: Path, folder: Path) -> Loaded:
        model = rp.create_model(name, num_classes=classes, weights=shared / "data" / "checkpoints" / weights)
        content = rp.load_data(f"npz:{folder / data}.npz", image_size=size)
        images = list(content.unlabeled(count, seed=SEED).split(BATCH))  # type: ignore[no-untyped-call]

        def score(pruned: nn.Module) -> float:
            return 100 * rp.evaluate(pruned, content.test.batches(100)).top1

        shape = " x ".join(map(str, images[0].shape[2:]))
        about = f"{count:,} unlabeled training images of {shape}, seed {SEED}; {len(content.test.labels):,} test images"
        return Loaded(model, [x.name for x in rp.prunable_layers(model)], images, score, about)

    return load


def language(shared: Path, folder: Path) -> Loaded:
    """The small language model of benchmarks/transformer.py, trained there; its score is a perplexity: less is better.

    `folder` is the data's; the network lies beside it, where transformer.py left it.
    """
    sys.path.append(str(BENCHMARKS))
    transformer = importlib.import_module("transformer")
    text = transformer.Text.manual()
    cache = folder.parent / "transformer"
    if not list(cache.glob("gpt-*.safetensors")):
        raise FileNotFoundError(f"{cache} has no language model: transformer.py --sparsities '' trains it")
    model, how = transformer.trained(text, transformer.STEPS, cache)
    draw = transformer.DRAWS[0]
    ids = list(text.draw(transformer.SEQUENCES, draw)[:, :-1].split(BATCH))
    about = f"{transformer.SEQUENCES:,} sequences of {transformer.CONTEXT} characters to train on, seed {draw}; {how}"
    layers = [x.name for x in rp.prunable_layers(model, types=transformer.TYPES)]
    return Loaded(model, layers, ids, lambda pruned: float(transformer.scored(pruned, text)), about)


NETWORKS: Mapping[str, Callable[..., Loaded]] = {
    "resnet20": vision("resnet20", "resnet20-12fca82f.th", "cifar10", 10, 1024, None),
    "resnet18": vision("resnet18", "resnet18_cifar100.safetensors", "cifar100", 100, 512, 64),
    "gpt": language,
}


def reached(dense: nn.Module, pruned: nn.Module, layers: list[str]) -> float:
    """The share of the prunable weights that is gone: zero, or no longer there."""

    kept = sum(int(pruned.get_parameter(f"{name}.weight").count_nonzero()) for name in layers)
    return 1 - kept / sum(dense.get_parameter(f"{name}.weight").numel() for name in layers)


def timed(work: Callable[[nn.Module], Any], model: nn.Module, repeats: int) -> tuple[Any, float, list[float]]:
    """What the last run gave, by how many MB the first one grew the process, each one's seconds without the copy."""
    times: list[float] = []
    grown = 0.0
    for i in range(repeats):
        mine = copy.deepcopy(model)
        forget_peak_memory()
        before = peak_memory() or 0.0
        start = time.perf_counter()
        result = work(mine)
        times.append(time.perf_counter() - start)
        if i == 0:
            grown = (peak_memory() or 0.0) - before
    return result, round(grown, 1), times


def done(entry: Entry, what: str, loaded: Loaded, sparsity: float) -> dict[str, Any]:
    """The figures of one piece of work. A peer that fails has failed: that, too, is a figure."""
    repeats = REPEATS[what]
    try:
        if what == "masks":
            if entry.masks is None:
                raise SystemExit("this entry has no masks by themselves")
            once = copy.deepcopy(loaded.model)
            entry.masks(once, loaded.layers, sparsity)  # to warm up
            _, _, times = timed(lambda model: entry.masks(model, loaded.layers, sparsity), loaded.model, repeats)  # type: ignore[misc]
            return {"seconds": statistics.median(times), "times": times}
        pruned, grown, times = timed(
            lambda model: entry.prune(model, loaded.layers, loaded.images, sparsity), loaded.model, repeats
        )
        figures = {"seconds": statistics.median(times), "times": times, "grown_mb": grown}
        if what == "accuracy":
            figures |= {"reached": reached(loaded.model, pruned, loaded.layers), "score": loaded.score(pruned.eval())}
        return figures
    except Exception as error:
        lines = f"{type(error).__name__}: {error}".strip().splitlines()
        return {"failed": " ".join(" ".join(lines).split())[:400]}


def main(imports: tuple[str, ...], packages: tuple[str, ...], entries: Mapping[str, Entry]) -> None:
    """The command line of a peer's script: one piece of work, its figures as JSON in a file."""
    parser = argparse.ArgumentParser(description="One piece of work of a peer; run.py runs them all.")
    parser.add_argument("shared", type=Path, help="holds data/checkpoints")
    parser.add_argument("data", type=Path, help="holds cifar10.npz and cifar100.npz")
    parser.add_argument("--list", action="store_true", help="only say which entries there are, as JSON in --out")
    parser.add_argument("--network", choices=NETWORKS, default="resnet20")
    parser.add_argument("--entry", choices=entries, default=next(iter(entries)))
    parser.add_argument("--sparsity", type=float, default=0.95)
    parser.add_argument("--what", choices=REPEATS, default="accuracy")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    given = parser.parse_args()
    if given.list:
        known = {name: {"masks": x.masks is not None, "networks": x.networks} for name, x in entries.items()}
        given.out.write_text(json.dumps(known), encoding="utf-8")
        return
    torch.set_num_threads(given.threads)
    torch.manual_seed(SEED)
    warnings.simplefilter("ignore")
    with suppress(rp.MissingExtraError):
        torchvision()  # some peers import it by themselves, which fails where its operators do not fit this torch
    for name in imports:
        importlib.import_module(name)  # its seconds are told apart
    try:
        loaded = NETWORKS[given.network](given.shared, given.data)
    except Exception as error:  # no peer has run yet: whatever fails here is no result of it
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(OURS)
    load = round(os.getloadavg()[0], 1)  # of the machine, before the work: seconds beside others are no figure
    figures = done(entries[given.entry], given.what, loaded, given.sparsity)
    facts = {
        "about": loaded.about,
        "seed": SEED,
        "threads": given.threads,
        "hardware": hardware(),
        "load": load,
        "versions": {"python": platform.python_version(), **{x: metadata.version(x) for x in packages}},
    }
    given.out.write_text(json.dumps({**figures, **facts}, allow_nan=False), encoding="utf-8")
