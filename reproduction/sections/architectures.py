"""Sections about other networks: VGG16-BN, ResNet34, and where RR is useful on each."""

from __future__ import annotations

from collections.abc import Sequence

from repairability.experiments.record import Record
from repairability.report.estimates import gaps, leaders
from repairability.report.sections.accuracy import gap_charts, sweeps
from repairability.report.sections.groups import Group, Key, gap_cells, groups
from repairability.report.sections.section import Section
from repairability.report.tables import interval
from repairability.tables import Table
from reproduction.paper import by_rule, numbers, paper_table, setting
from reproduction.paper import interval as printed_interval
from reproduction.sections.compare import HEAD, RESNET18, Paper, beyond_noise, cells, compare, label, tabulated

PAIRS = {f"rr - {rule}": ("rr", rule) for rule in ("erk", "lamp", "raw")}
PRINTED_PAIRS = {"rr - erk": "RR - ERK", "rr - lamp": "RR - LAMP", "rr - raw": "RR - Raw"}
SWEEPS = {
    "main_results": RESNET18,
    "fine_transition_full": RESNET18,
    "vgg_main": "VGG16-BN",
    "resnet34_main": "ResNet34",
}
"""The paper's accuracy tables, and the network of each."""


def vgg16_bn(records: Sequence[Record]) -> Section:
    """VGG16-BN: accuracies, gaps, achieved sparsities."""
    return _network(records, "VGG16-BN", "vgg")


def resnet34(records: Sequence[Record]) -> Section:
    """ResNet34: the same three."""
    return _network(records, "ResNet34", "resnet34")


def _network(records: Sequence[Record], model: str, prefix: str) -> Section:
    ours = groups(records, model)
    main: Paper = {setting(row): by_rule(row) for row in paper_table(f"{prefix}_main")}
    gains: Paper = {setting(row): numbers(row, PRINTED_PAIRS) for row in paper_table(f"{prefix}_rr_gaps")}
    tables = [
        compare(f"{model}: recovered top-1 accuracy, %", HEAD, cells(ours), main, stacked=True),
        compare(f"{model}: gains of RR, points, paired by seed", HEAD, gap_cells(ours, PAIRS), gains, stacked=True),
        _achieved_by_seed(ours, model, f"{prefix}_actual_sparsity_full"),
    ]
    return Section(tables, {**sweeps(ours), **gap_charts(ours)})


def _achieved_by_seed(some: Sequence[Group], model: str, table: str) -> Table:
    """Global sparsity of every single run, as the paper lists it."""
    rows = [
        {**row, "key": (group.place, round(row["sparsity"], 6), row["seed"]), "column": row["rule"]}
        for group in some
        for row in group.report.results
    ]
    paper: Paper = {(*setting(row), int(row["Seed"])): by_rule(row) for row in paper_table(table)}
    note = "Over all convolution weights, the dense stem included."
    title = f"{model}: achieved global sparsity, %"
    ours = tabulated(rows, "global_sparsity")
    return compare(title, (*HEAD, "seed"), ours, paper, note=note, stacked=True, accuracy=False)


def architecture_summary(records: Sequence[Record]) -> Section:
    """Where RR is the best rule and where it beats ERK, for each network and data set."""
    ours: dict[Key, tuple[str, str]] = {}
    for group in groups(records):
        best = [rank.sparsity for rank in leaders(group.report) if "rr" in rank.labels and rank.runner_up]
        above = [s for (_, s), gap in gaps(group.report).items() if beyond_noise(gap)]
        model = group.report.model
        ours[model, group.place.removeprefix(f"{model} on ")] = (_listed(best), _listed(above))
    words: dict[Key, tuple[str, str]] = {}
    for row in paper_table("arch_summary"):
        region = printed_interval(row["Region"])
        for data in ("CIFAR10", "CIFAR100") if row["Dataset"] == "CIFAR10/100" else (row["Dataset"],):
            words[row["Architecture"], data] = (interval(region) if region else "", row["Main pattern"])
    theirs = {key: _listed(points) for key, points in _best_in_paper().items()}
    rows = [
        (*map(label, key), *ours.get(key, ("", "")), theirs.get(key, ""), *words.get(key, ("", "")))
        for key in dict.fromkeys([*words, *theirs, *ours])
    ]
    head = ("network", "data", "rr best at", "rr above erk at", "paper: rr best at", "paper: region", "paper: pattern")
    caption = (
        "Best: the highest mean, alone or with others. Above: by more than two paired standard errors. The paper's "
        "'rr best' is read from its accuracy tables, its region and pattern are its own words."
    )
    return Section([Table(head, rows, "Where RR is useful, by network", caption)])


def _best_in_paper() -> dict[Key, set[float]]:
    """The sparsities at which RR has the highest mean of a row, alone or with others."""
    points: dict[Key, set[float]] = {}
    for table, model in SWEEPS.items():
        for row in paper_table(table):
            data, s = setting(row)
            means = {rule: printed.mean for rule, printed in by_rule(row).items()}
            points.setdefault((model, data), set())
            if means["rr"] == max(means.values()):
                points[model, data].add(s)
    return points


def _listed(points: Sequence[float] | set[float]) -> str:
    return label(tuple(sorted(points))) or "nowhere"
