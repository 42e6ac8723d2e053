"""The embedded story: digits, a small ResNet, seven rules over a sweep of sparsities."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repairability.allocation import Allocation
from repairability.calibration import CalibrationSet
from repairability.data import load_data
from repairability.detect import find_transition
from repairability.evaluation import evaluate
from repairability.network.discover import prunable_layers
from repairability.progress import track
from repairability.provenance import provenance
from repairability.pruning import prune_many
from repairability.repairs import recalibrated
from repairability.report import ReportData
from repairability.rules import PAPER_RULES
from repairability.training import digits_network

SPARSITIES = (0.80, 0.85, 0.90, 0.925, 0.94, 0.95, 0.96, 0.97)
HEADLINE = 0.95
"""The sparsity whose allocations are shown layer by layer."""


def run_demo(
    *, seeds: Sequence[int] = (0, 1, 2), sparsities: Sequence[float] = SPARSITIES, cache: Path | None = None
) -> ReportData:
    """Train (or take from the cache), diagnose, prune, repair, evaluate; everything the report shows."""
    started = time.perf_counter()
    data = load_data("digits")
    model = digits_network(data, cache=cache)
    test = list(data.test.batches())
    dense = evaluate(model, test)
    draws = {seed: CalibrationSet(data.unlabeled(len(data.train), seed)) for seed in seeds}
    first = draws[seeds[0]]
    results: list[dict[str, Any]] = []
    shown: list[Allocation] = []
    diagnosis = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 1,200 training images: BatchNorm cycles over them, as the report says
        dense_bn = evaluate(recalibrated(model, first), test)
        for seed, calibration in draws.items():
            cells = prune_many(model, calibration, sparsities=sparsities, recipe="paper", rules=PAPER_RULES)
            for result in track(cells, f"seed {seed}: seven rules", len(sparsities) * len(PAPER_RULES)):
                metrics = evaluate(result.model, test)
                results.append(
                    {
                        "rule": result.allocation.rule,
                        "repair": result.repair,
                        "sparsity": result.allocation.target,
                        "achieved": result.sparsity,
                        "global_sparsity": result.global_sparsity,
                        "seed": seed,
                        "top1": metrics.top1,
                        "n": metrics.n,
                    }
                )
                if calibration is first:
                    diagnosis = result.diagnosis or diagnosis
                    if result.allocation.target == HEADLINE:
                        shown.append(result.allocation)
        transition = find_transition(model, first, method="agreement", sparsities=sparsities)
    return ReportData(
        title="Relative repairability on handwritten digits",
        model="digits ResNet",
        data="scikit-learn digits",
        dense={"top1": dense.top1, "top1_bn": dense_bn.top1, "n": dense.n},
        diagnosis=diagnosis,
        projections=tuple(layer.name for layer in prunable_layers(model) if layer.projection),
        allocations=tuple(shown),
        results=tuple(results),
        transition=transition.for_report(),
        provenance={
            **provenance(),
            "seeds": ", ".join(map(str, seeds)),
            "images": "128 for the statistics; BatchNorm recalibration cycles over the other 1,072",
            "seconds": f"{time.perf_counter() - started:.0f}",
        },
    )
