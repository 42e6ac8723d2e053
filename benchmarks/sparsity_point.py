"""One sparsity point of the full seven-rule comparison, by stage, on two CPU threads (two processes of one each).

    python benchmarks/sparsity_point.py [SHARED DATA]

With SHARED (checkpoints) and DATA (npz files): ResNet18 on CIFAR-100 at 64 x 64, 10,000 test images, as in the paper,
which needed a median of 7.23 minutes with six rules. Without: the same on the embedded digits.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch
from timing import machine, seconds

from repairability import create_model, load_data
from repairability.calibration import CalibrationSet
from repairability.experiments import Files, Processes, Store, only, read_study, sweep
from repairability.repairs import recalibrated
from repairability.tables import Table
from repairability.training import digits_network

STUDIES = Path(__file__).parents[1] / "reproduction" / "studies"


def recalibration(arguments: list[str]) -> float:
    """Seconds of BatchNorm's part of the repair, on one thread."""
    torch.set_num_threads(1)
    if arguments:
        model = create_model(
            "resnet18", num_classes=100, weights=Path(arguments[0]) / "data/checkpoints/resnet18_cifar100.safetensors"
        )
        data = load_data(f"npz:{Path(arguments[1]) / 'cifar100.npz'}", image_size=64)
    else:
        data = load_data("digits")
        model = digits_network(data)
    images = CalibrationSet(data.unlabeled(min(2688, len(data.train)), 0))
    return seconds(lambda: recalibrated(model, images), 2)


def main(arguments: list[str]) -> None:
    if arguments:
        study = only(read_study(STUDIES / "main_results.toml"), ["data=cifar100", "sparsity=0.95", "seed=0"])
        files = Files([Path(arguments[0]) / "data" / "checkpoints", Path(arguments[1])])
    else:
        study, files = only(read_study(STUDIES / "digits.toml"), ["sparsity=0.95", "seed=0"]), Files()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        jobs = [files.job(spec, store.folder) for spec in study.specs]
        start = time.perf_counter()
        progress = sweep(study, jobs, store, executor=Processes(2))
        wall = time.perf_counter() - start
        records, _ = store.read_all()
    assert progress.done == len(jobs), progress.problems
    stages: dict[str, float] = {}
    for record in records:
        for stage, spent in record.provenance["seconds"].items():
            stages[stage] = stages.get(stage, 0.0) + spent
    bn = len(records) * recalibration(arguments)
    dense = stages.pop("dense", 0.0)
    stages["repair: BatchNorm"], stages["repair: CR"] = bn, max(0.0, stages.pop("repair") - bn)
    total = sum(stages.values())
    rows = [
        (name, f"{spent:.1f}", f"{spent / total:.1%}") for name, spent in sorted(stages.items(), key=lambda x: -x[1])
    ]
    other = 1 - (stages["evaluate"] + bn) / total
    caption = (
        f"{len(records)} rules at 95 %, n = {records[0].result['n']:,}: {wall / 60:.2f} min by the clock, the workers' "
        f"start and the dense network's own accuracy ({dense:.0f} s, once per network and draw) included; neither "
        f"evaluation nor BatchNorm: {other:.1%}. {machine()}"
    )
    print(Table(("stage", "seconds on one thread", "share"), rows, "One sparsity point", caption))


if __name__ == "__main__":
    main(sys.argv[1:])
