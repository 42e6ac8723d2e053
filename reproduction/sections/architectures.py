"""Sections about other networks: VGG16-BN, ResNet34, and where RR is useful on each."""

from __future__ import annotations

from collections.abc import Sequence

from repairability.experiments.store import Record
from repairability.report.estimates import estimate, gaps, leaders
from repairability.report.tables import short_percent
from repairability.tables import Table
from reproduction.paper import by_rule, number, paper_table, share
from reproduction.sections.accuracies import HEAD, beyond_noise, drawn
from reproduction.sections.groups import Group, cells, gap_cells, groups, rule_name
from reproduction.sections.section import Key, Ours, Paper, Section, compare

PAIRS = {"rr - erk": ("rr", "erk"), "rr - lamp": ("rr", "lamp"), "rr - raw": ("rr", "raw")}
PAPER_PAIRS = {"RR - ERK": "rr - erk", "RR - LAMP": "rr - lamp", "RR - Raw": "rr - raw"}


def vgg16_bn(records: Sequence[Record]) -> Section:
    """VGG16-BN: accuracies, gaps, achieved sparsities."""
    return _network(records, "VGG16-BN", "vgg")


def resnet34(records: Sequence[Record]) -> Section:
    """ResNet34: the same three."""
    return _network(records, "ResNet34", "resnet34")


def _network(records: Sequence[Record], model: str, prefix: str) -> Section:
    found = groups(records, model)
    main: Paper = {_key(row): by_rule(row) for row in paper_table(f"{prefix}_main")}
    printed: Paper = {}
    for row in paper_table(f"{prefix}_rr_gaps"):
        pairs = {name: number(row[column]) for column, name in PAPER_PAIRS.items()}
        printed[_key(row)] = {name: each for name, each in pairs.items() if each is not None}
    tables = [
        compare(f"{model}: recovered top-1 accuracy, %", HEAD, cells(found), main, stacked=True),
        compare(f"{model}: gains of RR, points, paired by seed", HEAD, gap_cells(found, PAIRS), printed, stacked=True),
        achieved_by_seed(found, model, f"{prefix}_actual_sparsity_full"),
    ]
    return Section(tables, {**drawn("sweep", found), **drawn("gap", found)})


def _key(row: dict[str, str]) -> Key:
    return row["Dataset"], short_percent(share(row.get("Sparsity") or row["Target"]))


def achieved_by_seed(found: Sequence[Group], model: str, table: str) -> Table:
    """Global sparsity of every single run, as the paper lists it."""
    ours: Ours = {}
    for group in found:
        for record in group.records:
            key = (group.place, short_percent(record.spec.sparsity), str(record.spec.seed))
            value = estimate([record.result["global_sparsity"]], [record.result], "global_sparsity")
            ours.setdefault(key, {})[rule_name(record.spec)] = value
    paper: Paper = {(*_key(row), row["Seed"]): by_rule(row) for row in paper_table(table)}
    note = "Over all convolution weights, the dense stem included."
    title = f"{model}: achieved global sparsity, %"
    return compare(title, (*HEAD, "seed"), ours, paper, note=note, stacked=True, accuracy=False)


def architecture_summary(records: Sequence[Record]) -> Section:
    """Where RR is the best rule and where it beats ERK, for each network and data set."""
    ours: dict[Key, tuple[str, str]] = {}
    for group in groups(records):
        first = [leader.sparsity for leader in leaders(group.report) if "rr" in leader.labels and leader.runner_up]
        above = [gap.sparsity for gap in gaps(group.report) if beyond_noise(gap)]
        ours[_place(group)] = (_listed(first), _listed(above))
    paper: dict[Key, tuple[str, str]] = {}
    for row in paper_table("arch_summary"):
        for data in ("CIFAR10", "CIFAR100") if row["Dataset"] == "CIFAR10/100" else (row["Dataset"],):
            paper[row["Architecture"], data] = (row["Region"].replace("%", " %"), row["Main pattern"])
    theirs = {key: _listed(points) for key, points in _best_in_paper().items()}
    rows = [
        (*key, *ours.get(key, ("", "")), theirs.get(key, ""), *paper.get(key, ("", "")))
        for key in dict.fromkeys([*paper, *theirs, *ours])
    ]
    head = ("network", "data", "rr best at", "rr above erk at", "paper: rr best at", "paper: region", "paper: pattern")
    caption = (
        "Best: the highest mean, alone or with others. Above: by more than two paired standard errors. The paper's "
        "'rr best' is read from its accuracy tables, its region and pattern are its own words."
    )
    return Section([Table(head, rows, "Where RR is useful, by network", caption)])


def _place(group: Group) -> Key:
    return group.model, group.place.removeprefix(f"{group.model} on ")


def _best_in_paper() -> dict[Key, list[float]]:
    """The sparsities at which RR has the highest mean of a row, alone or with others."""
    tables = {"main_results": "ResNet18", "fine_transition_full": "ResNet18", "vgg_main": "VGG16-BN"}
    found: dict[Key, list[float]] = {}
    for table, model in {**tables, "resnet34_main": "ResNet34"}.items():
        for row in paper_table(table):
            rules = by_rule(row)
            s = share(row.get("Sparsity") or row["Target sparsity"])
            points = found.setdefault((model, row.get("Dataset", "CIFAR100")), [])
            if rules["rr"].mean == max(each.mean for each in rules.values()) and s not in points:
                points.append(s)
    return found


def _listed(points: Sequence[float]) -> str:
    return ", ".join(short_percent(s) for s in sorted(points)) or "nowhere"
