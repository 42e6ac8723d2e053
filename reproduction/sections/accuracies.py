"""Sections about recovered accuracy: the sweep, the gaps, the transition, transfer, calibration size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from repairability.experiments.store import Record
from repairability.report import charts
from repairability.report import tables as plain
from repairability.report.estimates import Gap, gaps
from repairability.report.tables import interval, short_percent
from repairability.transition import Interval, longest_run
from reproduction.paper import Number, by_rule, number, paper_table, share
from reproduction.sections.gaps import gap_table
from reproduction.sections.groups import Group, cells, gap_cells, groups, of_the_papers_network
from reproduction.sections.section import Draw, Ours, Paper, Section, compare, measured

HEAD = ("data", "sparsity")
FINE_GAPS = {0.94: Number(3.12, 0.64), 0.945: Number(2.59, 0.78), 0.95: Number(2.50, 0.63), 0.955: Number(2.32, 0.24)}
"""RR minus ERK in the central band, from the paper's text."""


def main_results(records: Sequence[Record]) -> Section:
    """Rules by sparsities on each data set; the sweep as a figure."""
    found = groups(records, "ResNet18")
    paper: Paper = {
        (row["Dataset"], short_percent(share(row["Sparsity"]))): by_rule(row) for row in paper_table("main_results")
    }
    title = "Recovered top-1 accuracy on ResNet18, %: ours beside the paper's main results"
    return Section([compare(title, HEAD, cells(found), paper, stacked=True)], drawn("sweep", found))


def paired_gap(records: Sequence[Record]) -> Section:
    """RR minus ERK."""
    found = groups(records, "ResNet18")
    paper: Paper = {}
    for row in paper_table("paired_gap"):
        data, sparsity = row["Setting"].split()
        gap = Number(float(row["RR - ERK mean"]), float(row["Paired std."]))
        paper[data, short_percent(share(sparsity))] = {"rr - erk": gap}
    ours = gap_cells(found, {"rr - erk": ("rr", "erk")})
    table = compare("RR minus ERK on ResNet18, points, paired by seed", HEAD, ours, paper)
    return Section([table], drawn("gap", found))


def fine_transition(records: Sequence[Record]) -> Section:
    """The sweep from 93.5 to 96 %, the gaps, and the band where RR is above ERK beyond noise."""
    found = groups(records, "ResNet18")
    bands = {group.place: central_band(gaps(group.report)) for group in found}
    words = "; ".join(f"{place}: {interval(band) if band else 'nowhere'}" for place, band in bands.items())
    note = (
        "Central band, the longest run of sparsities where rr is above erk by more than two paired standard errors: "
        f"{words or 'no runs of ours'}. The paper's: {interval((0.94, 0.955))}."
    )
    title = "Fine transition on ResNet18, top-1 accuracy, %"
    accuracy = compare(title, HEAD, cells(found), fine_accuracies(), stacked=True)
    means = fine_gaps("rr", "erk")
    paper: Paper = {("CIFAR100", short_percent(s)): {"rr - erk": FINE_GAPS.get(s, gap)} for s, gap in means.items()}
    ours = gap_cells(found, {"rr - erk": ("rr", "erk")})
    gap = compare("RR minus ERK in the transition, points, paired by seed", HEAD, ours, paper, note=note)
    shaded = {
        f"transition_{file_name(group.place)}": partial(charts.accuracy, group.report, bands[group.place])
        for group in found
    }
    return Section([accuracy, gap], shaded)


def lamp_gap(records: Sequence[Record]) -> Section:
    """RR minus LAMP in the central band."""
    found = groups(records, "ResNet18")
    paper: Paper = {}
    for row in paper_table("fine_transition_lamp"):
        gap = number(row["RR-LAMP"])
        rules = {rule: each for rule, each in by_rule(row).items() if rule in ("rr", "lamp")}
        paper["CIFAR100", short_percent(share(row["Sp."]))] = {**rules, **({"rr - lamp": gap} if gap else {})}
    title = "RR and LAMP on ResNet18: top-1 accuracy, %, and the gap, paired by seed"
    return Section([compare(title, HEAD, _with_gap(found, "lamp"), paper, stacked=True)])


def raw_gap(records: Sequence[Record]) -> Section:
    """RR minus raw shift over the fine transition."""
    found = groups(records, "ResNet18")
    means = fine_accuracies()
    paper: Paper = {
        ("CIFAR100", short_percent(s)): {
            **{rule: means["CIFAR100", short_percent(s)][rule] for rule in ("rr", "raw")},
            "rr - raw": gap,
        }
        for s, gap in fine_gaps("rr", "raw").items()
    }
    note = "The paper's gap is the difference of its means; it prints no paired deviation here."
    title = "RR and raw shift on ResNet18: top-1 accuracy, %, and the gap, paired by seed"
    return Section([compare(title, HEAD, _with_gap(found, "raw"), paper, note=note, stacked=True)])


def transfer(records: Sequence[Record]) -> Section:
    """Other data sets at 95 %."""
    found = groups(records, "ResNet18")
    paper: Paper = {(row["Dataset"], short_percent(0.95)): by_rule(row) for row in paper_table("transfer")}
    seeds = ", ".join(f"{row['Dataset']} {row['Seeds']}" for row in paper_table("transfer"))
    title = "Transfer data sets, ResNet18, top-1 accuracy, %"
    table = compare(title, HEAD, cells(found), paper, note=f"The paper's seeds: {seeds}.", stacked=True)
    return Section([table], drawn("sweep", found) if len(found) == 1 else {})


def calibration_size(records: Sequence[Record]) -> Section:
    """RR and ERK with fewer calibration images."""
    ours: Ours = {}
    for size in sorted({record.spec.count for record in records}):
        found = groups([record for record in records if record.spec.count == size], "ResNet18")
        reached = cells(found, "global_sparsity")
        for key, row in _with_gap(found, "erk").items():
            ours[(*key, f"{size}")] = {**row, **({"rr sparsity": reached[key]["rr"]} if "rr" in row else {})}
    paper: Paper = {}
    for line in paper_table("cal_sensitivity"):
        known = {"rr - erk": number(line["RR - ERK"]), "rr sparsity": number(line["RR sparsity"])}
        paper["CIFAR100", short_percent(0.95), line["calibration images"]] = {
            **by_rule(line),
            **{name: each for name, each in known.items() if each is not None},
        }
    beside = paper if not ours or of_the_papers_network(records) else {}
    note = "The sparsity of rr is over all convolution weights."
    note = f"The paper's are of ResNet18 and seed 0 alone. {note}" if beside else note
    title = "Calibration images: top-1 accuracy, %"
    return Section([compare(title, (*HEAD, "images"), ours, beside, note=note, stacked=True)])


def accuracy(records: Sequence[Record]) -> Section:
    """Any study: rules by sparsities, and RR minus each other rule; nothing of the paper's."""
    found = groups(records)
    tables = []
    for group in found:
        repairs = ", ".join(dict.fromkeys(record.spec.repair for record in group.records))
        every = [each for row in cells([group]).values() for each in row.values()]
        caption = f"Repair {repairs}. {measured(every)}"
        tables.append(replace(plain.accuracy(group.report), title=f"{group.place}: top-1 accuracy, %", caption=caption))
    gaps_of_rr = gap_table(found)
    if gaps_of_rr.rows or not tables:
        tables.append(gaps_of_rr)
    return Section(tables, {**drawn("sweep", found), **drawn("gap", found)})


def _with_gap(found: Sequence[Group], against: str) -> Ours:
    """RR, the other rule, and their paired gap."""
    gap = gap_cells(found, {f"rr - {against}": ("rr", against)})
    return {
        key: {**{rule: row[rule] for rule in ("rr", against) if rule in row}, **gap.get(key, {})}
        for key, row in cells(found).items()
    }


def central_band(found: Sequence[Gap]) -> Interval | None:
    """The longest run of sparsities where the gap is more than two paired standard errors above 0."""
    points = sorted(found, key=lambda gap: gap.sparsity)
    run = longest_run([beyond_noise(gap) for gap in points], [gap.estimate.mean for gap in points])
    return (points[run[0]].sparsity, points[run[-1]].sparsity) if run else None


def beyond_noise(gap: Gap) -> bool:
    """More than two standard errors above 0."""
    return gap.estimate.mean > 2 * (gap.estimate.standard_error or 0.0)


def fine_accuracies() -> Paper:
    """The paper's fine sweep."""
    return {
        ("CIFAR100", short_percent(share(row["Target sparsity"]))): by_rule(row)
        for row in paper_table("fine_transition_full")
    }


def fine_gaps(rule: str, against: str) -> dict[float, Number]:
    """Differences of the paper's means over its fine sweep."""
    rows = {share(row["Target sparsity"]): by_rule(row) for row in paper_table("fine_transition_full")}
    return {s: Number(row[rule].mean - row[against].mean) for s, row in rows.items() if rule in row and against in row}


def drawn(kind: str, found: Sequence[Group]) -> dict[str, Draw]:
    """One figure per group; no gap where nothing is paired."""
    draw = {"sweep": charts.accuracy, "gap": charts.gap}[kind]
    return {f"{kind}_{file_name(group.place)}": partial(draw, group.report) for group in found}


def file_name(text: str) -> str:
    """Letters, digits and underscores only."""
    return "_".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
