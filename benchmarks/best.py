"""What `prune --best` gives: what it tried, what it took, and how far that is from the best of what it tried.

    python benchmarks/best.py SHARED DATA [--sparsities 0.8,0.9,0.95] [--seed 0]

ResNet20 / CIFAR-10 on all test images. Every candidate is also pruned by itself, on the same images, and judged by the
labels that `best` never sees: the regret is the best of these accuracies less that of the choice.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from timing import machine

from repairability import create_model, evaluate, load_data, prune, prune_best
from repairability.calibration import HELD_OUT
from repairability.pruning.choose import BEST
from repairability.tables import Table

IMAGES = 128 + 2560 + HELD_OUT


def main(shared: Path, folder: Path, sparsities: list[float], seed: int) -> Table:
    model = create_model("resnet20", weights=shared / "data" / "checkpoints" / "resnet20-12fca82f.th")
    data = load_data(f"npz:{folder / 'cifar10.npz'}")
    images = data.unlabeled(IMAGES, seed)
    rows = []
    for s in sparsities:
        start = time.perf_counter()
        chosen = prune_best(model, images, sparsity=s)
        spent = time.perf_counter() - start
        ours = evaluate(chosen.model, data.test.batches()).top1
        accuracies = []
        for recipe, trial in zip(BEST, chosen.trials, strict=True):
            names, kl = (trial.rule, trial.score, trial.repair), trial.kl
            alone = prune(model, images[:-HELD_OUT], sparsity=s, recipe=recipe)
            accuracies.append(evaluate(alone.model, data.test.batches()).top1)
            rows.append((f"{100 * s:g} %", *names, f"{kl:.4f}" if kl else "", f"{100 * accuracies[-1]:.2f}", "", ""))
        regret = max(accuracies) - ours
        rows.append((f"{100 * s:g} %", "best", "", "", "", f"{100 * ours:.2f}", f"{100 * regret:.2f}", f"{spent:.0f}"))
    head = ("sparsity", "rule", "score", "repair", "mean KL, held out", "top-1, %", "regret, points", "seconds")
    return Table(head, rows, machine())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The choice of `best` against each of its candidates.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sparsities", default="0.8,0.9,0.95")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(main(given.shared, given.data, [float(s) for s in given.sparsities.split(",")], given.seed))
