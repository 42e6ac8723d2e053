"""Allocation plus masks for ResNet18 at 95 %, beside torch's own global pruning in the same run.

    python benchmarks/allocation.py

Prints the time of each rule and its ratio to `torch.nn.utils.prune.global_unstructured` (which selects and masks, too).
"""

from __future__ import annotations

import copy
import time

from timing import machine, seconds
from torch.nn.utils import prune

from repairability import allocate, create_model, make_masks, prunable_layers
from repairability.tables import Table

SPARSITY = 0.95
LIMITS = {"global": 0.1, "lamp": 0.5, "erk": 0.1, "uniform": 0.1}


def torchs_own(times: list[float]) -> None:
    """On a fresh copy each time, since it changes the model; copying is not counted."""
    model = copy.deepcopy(MODEL)
    pairs = [(model.get_submodule(x.name), "weight") for x in prunable_layers(model)]
    start = time.perf_counter()
    prune.global_unstructured(pairs, pruning_method=prune.L1Unstructured, amount=SPARSITY)
    times.append(time.perf_counter() - start)


def main() -> None:
    peer: list[float] = []
    for _ in range(3):
        torchs_own(peer)
    rows = [("torch global_unstructured", f"{min(peer) * 1e3:.0f}", "1.000", "")]
    for rule, limit in LIMITS.items():
        taken = seconds(lambda rule=rule: make_masks(MODEL, allocate(MODEL, sparsity=SPARSITY, rule=rule)))  # type: ignore[misc]
        rows.append((rule, f"{taken * 1e3:.0f}", f"{taken / min(peer):.3f}", f"{limit:g}"))
    title = f"ResNet18, {SPARSITY:.0%}; {machine()}"
    print(Table(("allocation + masks", "ms", "ratio", "at most"), rows, title=title))


if __name__ == "__main__":
    MODEL = create_model("resnet18")
    main()
