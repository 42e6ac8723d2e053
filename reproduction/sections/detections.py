"""Sections about the transition: CTS per seed, majority cores, both detectors, local-to-joint consistency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from repairability.detect import Transition
from repairability.experiments.store import Record
from repairability.report import charts
from repairability.report.data import ReportData
from repairability.report.estimates import Estimate
from repairability.report.tables import interval, short_percent
from repairability.tables import Table
from repairability.transition import Consensus, Interval, consensus
from repairability.transition import consistency as rank_consistency
from reproduction.paper import interval as paper_interval
from reproduction.paper import number, paper_table, share
from reproduction.sections.accuracies import HEAD, file_name
from reproduction.sections.groups import data_name, done, groups, model_name, of_the_papers_network
from reproduction.sections.section import Draw, Key, Ours, Paper, Section, compare

NONE = "not detected"


def cts_per_seed(records: Sequence[Record]) -> Section:
    """Core and broad band of each seed."""
    ours = {
        (model_name(r.spec.model), data_name(r.spec.data), str(r.spec.seed)): _found(r)
        for r in done(records, "detect")
        if r.spec.method == "cts"
    }
    paper = {
        (row["Architecture"], row["Dataset"], row["Seed"]): row for row in paper_table("cts_detection_per_seed_band")
    }
    rows = []
    for key in dict.fromkeys([*paper, *ours]):
        found, row = ours.get(key), paper.get(key)
        line = [*key]
        for mine, column in (("core", "High-confidence core"), ("broad", "Broad detected band")):
            bounds = None if found is None else getattr(found, mine)
            theirs = None if row is None else paper_interval(row[column])
            line += [
                "" if found is None else words(bounds),
                "" if row is None else words(theirs),
                _shift(bounds, theirs),
            ]
        line.append("" if found is None else _null(found))
        rows.append(tuple(line))
    head = ("network", "data", "seed", "core", "core, paper", "difference", "band", "band, paper", "difference", "null")
    caption = (
        "Difference: of the lower and the upper bound, in points. Null: the share of the core that the detector names "
        "without the information; from 0.5 on the core carries none. The paper does not define its broad band; ours "
        "takes half the rise."
    )
    return Section([Table(head, rows, "Cores and bands by CTS, seed by seed", caption)], _drawn(records, "cts"))


def majority_cores(records: Sequence[Record]) -> Section:
    """The core that the seeds of a network agree on."""
    cores: dict[Key, list[Transition]] = {}
    for record in done(records, "detect"):
        if record.spec.method == "cts":
            cores.setdefault((model_name(record.spec.model), data_name(record.spec.data)), []).append(_found(record))
    printed = {(row["Architecture"], row["Dataset"]): row["CTS-selected core"] for row in paper_table("cts_detection")}
    by_seed: dict[Key, list[Interval | None]] = {}
    for row in paper_table("cts_detection_per_seed_band"):
        by_seed.setdefault((row["Architecture"], row["Dataset"]), []).append(
            paper_interval(row["High-confidence core"])
        )
    sweep = [round(0.9 + 0.005 * i, 3) for i in range(17)]
    rows = []
    for key in dict.fromkeys([*printed, *cores]):
        line = [*key, "", "", ""]
        agreed = None
        if key in cores:
            points = sorted({s for found in cores[key] for s in found.sparsities})
            ours = consensus([found.core for found in cores[key]], points)
            agreed = _agreed(ours)
            stable = "yes" if ours.stable is not None else "no"
            line[2:] = [words(agreed), stable, f"{sum(found.core is not None for found in cores[key])} of {ours.draws}"]
        theirs = paper_interval(printed[key]) if key in printed else None
        derived = _agreed(consensus(by_seed[key], sweep)) if key in by_seed else None
        line += [words(theirs) if key in printed else "", _shift(agreed, theirs)]
        line.append(words(derived) if key in by_seed else "")
        rows.append(tuple(line))
    head = ("network", "data", "core", "same in all seeds", "seeds with a core", "paper", "difference")
    caption = (
        "Core: that of all seeds, else the longest run of sparsities that more than half of them have. Last column: "
        "the same rule on the paper's own cores per seed. Difference: of the bounds, in points."
    )
    title = "Cores by CTS that the seeds agree on"
    return Section([Table((*head, "paper's seeds, our rule"), rows, title, caption)])


def detectors(records: Sequence[Record]) -> Section:
    """Any study of detectors: core, band and null of each, per seed."""
    rows = []
    for record in done(records, "detect"):
        found, spec = _found(record), record.spec
        collapse = "" if found.collapse is None else short_percent(found.collapse)
        verdict = "" if found.core is None else "yes" if found.informative else "no"
        row = (model_name(spec.model), data_name(spec.data), spec.method, str(spec.seed), words(found.core))
        rows.append((*row, words(found.broad), _null(found), verdict, collapse))
    head = ("network", "data", "method", "seed", "core", "band", "null", "informative", "collapse")
    caption = (
        "Null: the share of the core that the detector also names without the information; from 0.5 on it carries none."
        if rows
        else "No runs of ours."
    )
    tables = [Table(head, rows, "Where the network gives way, by detector", caption)]
    return Section(tables, {**_drawn(records, "cts"), **_drawn(records, "agreement")})


def consistency(records: Sequence[Record]) -> Section:
    """Rank correlation between -J and the recovered accuracy over rules."""
    ours: Ours = {}
    for group in groups([r for r in records if r.result.get("objective") is not None], "ResNet18"):
        lines = [
            {
                "sparsity": round(r.spec.sparsity, 6),
                "seed": r.spec.seed,
                "objective": r.result["objective"],
                "accuracy": r.result["top1"],
            }
            for r in group.records
        ]
        cells = [(line["sparsity"], line["seed"]) for line in lines]
        enough = [line for line, cell in zip(lines, cells, strict=True) if cells.count(cell) > 1]
        n = min(int(r.result["n"]) for r in group.records)
        for row in rank_consistency(enough):
            seeds = int(row["seeds"])
            found = {
                title: Estimate(row[name], row[f"{name}_sd"] if seeds > 1 else None, seeds, n)
                for title, name in (("Spearman", "spearman"), ("Kendall", "kendall"))
                if math.isfinite(row[name])
            }
            ours[group.place, short_percent(row["sparsity"])] = found
    paper: Paper = {}
    for line in paper_table("local_joint_consistency"):
        known = {"Spearman": number(line["Spearman rho"]), "Kendall": number(line["Kendall tau"])}
        key = ("CIFAR100", short_percent(share(line["Sparsity"])))
        paper[key] = {name: each for name, each in known.items() if each is not None}
    note = "Between minus J, measured at each allocation's own sparsities, and the accuracy after repair, over rules."
    title = "Local-to-joint consistency"
    beside = paper if not ours or of_the_papers_network(records) else {}
    return Section([compare(title, HEAD, ours, beside, note=note, scale=1, digits=3)])


def words(bounds: Interval | None) -> str:
    """An interval of sparsities, or that there is none."""
    return NONE if bounds is None else interval(bounds)


def _found(record: Record) -> Transition:
    return Transition.from_dict(record.result["transition"])


def _agreed(found: Consensus) -> Interval | None:
    return found.majority if found.stable is None else found.stable


def _null(found: Transition) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in found.null.items())


def _shift(ours: Interval | None, paper: Interval | None) -> str:
    """By how many points the bounds of ours lie above the paper's."""
    if ours is None or paper is None:
        return ""
    return ", ".join(f"{100 * (mine - theirs):+.1f}" for mine, theirs in zip(ours, paper, strict=True))


def _drawn(records: Sequence[Record], method: str) -> dict[str, Draw]:
    """The scores of each network's first seed."""
    made: dict[str, Draw] = {}
    for record in done(records, "detect"):
        model, data = model_name(record.spec.model), data_name(record.spec.data)
        name = f"{method}_{file_name(f'{model} {data}')}"
        if record.spec.method == method and name not in made:
            report = ReportData(name, model, f"{data}, seed {record.spec.seed}", transition=_found(record).for_report())
            made[name] = partial(charts.transition, report)
    return made
