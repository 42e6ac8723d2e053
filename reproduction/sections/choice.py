"""The section about choosing a rule without labels: what is lost by trusting the agreement with the dense network."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from repairability.experiments.record import Record
from repairability.report.sections.groups import groups
from repairability.report.sections.section import Section
from repairability.report.tables import short_percent
from repairability.tables import Table

HEAD = ("network", "sparsity", "chosen", "its top-1, %", "best, %", "regret", "worst", "best minus worst rule")
TITLE = "A rule chosen without labels: what the choice loses, points of top-1 accuracy"


def choice(records: Sequence[Record]) -> Section:
    """Per network and sparsity, over seeds: the rule with the least mean KL to the dense network on held-out images,
    against the best of all rules by test accuracy.
    """
    rows: list[tuple[str, ...]] = []
    every: list[float] = []
    for group in groups(records):
        cells: dict[float, dict[int, list[Record]]] = {}
        for record in group.records:
            if record.result.get("agreement"):
                cells.setdefault(record.spec.sparsity, {}).setdefault(record.spec.seed, []).append(record)
        for sparsity, by_seed in sorted(cells.items()):
            seeds = [runs for runs in by_seed.values() if len(runs) > 1]
            if not seeds:
                continue
            chosen = [min(runs, key=lambda run: run.result["agreement"]["kl"]) for runs in seeds]
            reached = [run.result["top1"] for run in chosen]
            best, worst = ([pick(run.result["top1"] for run in runs) for runs in seeds] for pick in (max, min))
            regrets = [100 * (top - mine) for top, mine in zip(best, reached, strict=True)]
            spread = [100 * (top - low) for top, low in zip(best, worst, strict=True)]
            every += regrets
            rules = ", ".join(dict.fromkeys(run.spec.rule for run in chosen))
            numbers = (100 * mean(reached), 100 * mean(best), mean(regrets), max(regrets), mean(spread))
            rows.append((group.place, short_percent(sparsity), rules, *(f"{number:.2f}" for number in numbers)))
    caption = "No runs that recorded an agreement."
    if every:
        caption = (
            f"Mean regret over {len(every)} choices (network, sparsity, seed): {mean(every):.2f} points, at most "
            f"{max(every):.2f}. Chosen: the least mean KL(dense || pruned) on unlabeled training images that no "
            "calibration used; best: by the labels of the test images, which the choice never sees, so that noise in "
            "them counts as regret."
        )
    return Section([Table(HEAD, rows, TITLE, caption)])
