"""Sections about the transition: CTS per seed, majority cores, local-to-joint consistency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repairability.detect import Transition
from repairability.experiments.record import Record
from repairability.report.sections.detectors import bounds, grid_text, null_text, score_charts, transition_of
from repairability.report.sections.groups import data_name, done, groups, model_name
from repairability.report.sections.section import Section
from repairability.tables import Table
from repairability.transition import Consensus, Interval, consensus
from reproduction.paper import interval as printed_interval
from reproduction.paper import numbers, paper_table, setting
from reproduction.sections.compare import HEAD, RESNET18, Paper, compare, of_the_papers_network, shown, tabulated

SWEEP = tuple(round(0.9 + 0.005 * i, 3) for i in range(17))
"""The sparsities at which the paper looks for a core."""


def cts_per_seed(records: Sequence[Record]) -> Section:
    """Core and broad band of each seed."""
    ours: dict[tuple[str, str, int], dict[str, Transition]] = {}
    for run in _cts(records):
        ours.setdefault((*_network(run), run.spec.seed), {})[grid_text(run)] = transition_of(run)
    paper = {
        (row["Architecture"], row["Dataset"], int(row["Seed"])): row
        for row in paper_table("cts_detection_per_seed_band")
    }
    rows = []
    for key, grid in _with_grids([*paper, *ours], ours):
        transition, row = ours.get(key, {}).get(grid), paper.get(key)
        line = [*map(str, key), grid]
        both = (None, None) if transition is None else (transition.core, transition.broad)
        for mine, column in zip(both, ("High-confidence core", "Broad detected band"), strict=True):
            theirs = None if row is None else printed_interval(row[column])
            line += [bounds(mine) if transition else "", bounds(theirs) if row else "", _shift(mine, theirs)]
        rows.append((*line, null_text(transition) if transition else ""))
    head = (
        "network",
        "data",
        "seed",
        "grid",
        "core",
        "core, paper",
        "difference",
        "band",
        "band, paper",
        "difference",
        "null",
    )
    caption = (
        "Difference: of the lower and the upper bound, in points. Null: the share of the core that the detector names "
        "without the information; from 0.5 on the core carries none. The paper does not define its broad band; ours "
        "takes half the rise."
    )
    return Section([Table(head, rows, "Cores and bands by CTS, seed by seed", caption)], score_charts(records, "cts"))


def majority_cores(records: Sequence[Record]) -> Section:
    """The core that the seeds of a network agree on."""
    ours: dict[tuple[str, str], dict[str, list[Transition]]] = {}
    for run in _cts(records):
        ours.setdefault(_network(run), {}).setdefault(grid_text(run), []).append(transition_of(run))
    printed = {
        (row["Architecture"], row["Dataset"]): printed_interval(row["CTS-selected core"])
        for row in paper_table("cts_detection")
    }
    by_seed: dict[tuple[str, str], list[Interval | None]] = {}
    for row in paper_table("cts_detection_per_seed_band"):
        core = printed_interval(row["High-confidence core"])
        by_seed.setdefault((row["Architecture"], row["Dataset"]), []).append(core)
    rows = []
    for key, grid in _with_grids([*printed, *ours], ours):
        line, mine = ["", "", ""], None
        if key in ours:
            cores = [transition.core for transition in ours[key][grid]]
            agreed = consensus(cores, sorted({s for transition in ours[key][grid] for s in transition.sparsities}))
            mine = _agreed(agreed)
            line = [bounds(mine), "no" if agreed.stable is None else "yes"]
            line.append(f"{sum(core is not None for core in cores)} of {agreed.draws}")
        theirs = printed.get(key)
        derived = bounds(_agreed(consensus(by_seed[key], SWEEP))) if key in by_seed else ""
        rows.append((*key, grid, *line, bounds(theirs) if key in printed else "", _shift(mine, theirs), derived))
    head = ("network", "data", "grid", "core", "same in all seeds", "seeds with a core", "paper", "difference")
    caption = (
        "Core: that of all seeds, else the longest run of sparsities that more than half of them have. Last column: "
        "the same rule on the paper's own cores per seed. Difference: of the bounds, in points."
    )
    title = "Cores by CTS that the seeds agree on"
    return Section([Table((*head, "paper's seeds, our rule"), rows, title, caption)])


def consistency(records: Sequence[Record]) -> Section:
    """Rank correlation between -J and the recovered accuracy over rules."""
    columns = {"Spearman": "Spearman rho", "Kendall": "Kendall tau"}
    paper: Paper = {setting(row): numbers(row, columns) for row in paper_table("local_joint_consistency")}
    points = {setting(row)[1] for row in paper_table("local_joint_consistency")}
    runs = shown(records, where=lambda spec: model_name(spec.model) != RESNET18 or round(spec.sparsity, 6) in points)
    rows: list[dict[str, Any]] = []
    for group in groups([run for run in runs if run.result.get("objective") is not None], RESNET18):
        n = min(int(run.result["n"]) for run in group.records)
        over_rules: dict[tuple[float, int], list[Record]] = {}
        for run in group.records:
            over_rules.setdefault((round(run.spec.sparsity, 6), run.spec.seed), []).append(run)
        for (sparsity, _), some in over_rules.items():
            if len(some) > 1:
                both = rank_correlation(*([run.result[name] for run in some] for name in ("objective", "top1")))
                cell = {"key": (group.place, sparsity), "n": n}
                rows += [{**cell, "column": name, "rank": rank} for name, rank in zip(columns, both, strict=True)]
    constant = {row["key"] for row in rows if math.isnan(row["rank"])}  # no mean over seeds of which one has none
    ours = tabulated([row for row in rows if row["key"] not in constant], "rank")
    note = "Between minus J, measured at each allocation's own sparsities, and the accuracy after repair, over rules."
    beside = paper if not ours or of_the_papers_network(runs) else {}
    table = compare("Local-to-joint consistency", HEAD, ours, beside, note=note, scale=1, digits=3)
    return Section([table], records=runs)


def rank_correlation(objectives: Sequence[float], accuracies: Sequence[float]) -> tuple[float, float]:
    """Spearman's rho and Kendall's tau between -J and the recovered accuracy, over rules; nan where one is constant."""
    from scipy import stats  # here, because importing it costs half a second

    lower = -np.asarray(objectives, dtype=float)
    if np.ptp(lower) == 0 or np.ptp(accuracies) == 0:
        return math.nan, math.nan
    return float(stats.spearmanr(lower, accuracies).statistic), float(stats.kendalltau(lower, accuracies).statistic)


def _cts(records: Sequence[Record]) -> list[Record]:
    return [record for record in done(records, "detect") if record.spec.method == "cts"]


def _network(run: Record) -> tuple[str, str]:
    return model_name(run.spec.model), data_name(run.spec.data)


def _with_grids(keys: Sequence[Any], ours: Mapping[Any, Mapping[str, Any]]) -> list[tuple[Any, str]]:
    """Each row's key once, with every grid that we ran; an empty one where we ran none."""
    return [(key, grid) for key in dict.fromkeys(keys) for grid in ours.get(key, {"": None})]


def _agreed(cores: Consensus) -> Interval | None:
    return cores.majority if cores.stable is None else cores.stable


def _shift(ours: Interval | None, paper: Interval | None) -> str:
    """By how many points the bounds of ours lie above the paper's."""
    if ours is None or paper is None:
        return ""
    return ", ".join(f"{100 * (mine - theirs):+.1f}" for mine, theirs in zip(ours, paper, strict=True))
