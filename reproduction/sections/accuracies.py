"""Sections about recovered accuracy: the sweep, the gaps, the transition, transfer, calibration size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from repairability.experiments.record import Record
from repairability.report import charts
from repairability.report.estimates import Estimate, gaps
from repairability.report.sections.accuracy import gap_charts, sweeps
from repairability.report.sections.groups import Cells, Group, file_name, gap_cells, groups
from repairability.report.sections.section import Section
from repairability.report.tables import interval
from repairability.transition import Interval, longest_run
from reproduction.paper import Number, by_rule, numbers, paper_table, setting
from reproduction.sections.compare import (
    HEAD,
    RESNET18,
    Paper,
    beyond_noise,
    cells,
    compare,
    of_the_papers_network,
    shown,
)

BAND = {0.94: Number(3.12, 0.64), 0.945: Number(2.59, 0.78), 0.95: Number(2.50, 0.63), 0.955: Number(2.32, 0.24)}
"""RR minus ERK in the central band, from the paper's text."""


def main_results(records: Sequence[Record]) -> Section:
    """Rules by sparsities on each data set; the sweep as a chart."""
    ours = groups(records, RESNET18)
    paper: Paper = {setting(row): by_rule(row) for row in paper_table("main_results")}
    title = "Recovered top-1 accuracy on ResNet18, %: ours beside the paper's main results"
    return Section([compare(title, HEAD, cells(ours), paper, stacked=True)], sweeps(ours))


def paired_gap(records: Sequence[Record]) -> Section:
    """RR minus ERK."""
    runs = shown(records, ("rr", "erk"))
    ours = groups(runs, RESNET18)
    paper: Paper = {
        setting(row): {"rr - erk": Number(float(row["RR - ERK mean"]), float(row["Paired std."]))}
        for row in paper_table("paired_gap")
    }
    title = "RR minus ERK on ResNet18, points, paired by seed"
    return Section([compare(title, HEAD, _gaps(ours, "erk"), paper)], gap_charts(ours), runs)


def fine_transition(records: Sequence[Record]) -> Section:
    """The sweep from 93.5 to 96 %, the gaps, and the band where RR is above ERK beyond noise."""
    ours = groups(records, RESNET18)
    bands = {group.place: central_band(gaps(group.report)) for group in ours}
    words = "; ".join(f"{place}: {interval(band) if band else 'nowhere'}" for place, band in bands.items())
    note = (
        "Central band, the longest run of sparsities where rr is above erk by more than two paired standard errors: "
        f"{words or 'no runs of ours'}. The paper's: {interval((min(BAND), max(BAND)))}."
    )
    title = "Fine transition on ResNet18, top-1 accuracy, %"
    accuracy = compare(title, HEAD, cells(ours), _fine_sweep(), stacked=True)
    paper: Paper = {
        (data, s): {"rr - erk": BAND.get(s, Number(row["rr"].mean - row["erk"].mean))}
        for (data, s), row in _fine_sweep().items()
    }
    title = "RR minus ERK in the transition, points, paired by seed"
    gap = compare(title, HEAD, _gaps(ours, "erk"), paper, note=note)
    shaded = {
        f"transition_{file_name(group.place)}": partial(charts.accuracy, group.report, bands[group.place])
        for group in ours
    }
    return Section([accuracy, gap], shaded)


def lamp_gap(records: Sequence[Record]) -> Section:
    """RR minus LAMP in the central band."""
    columns = {"rr": "RR", "lamp": "LAMP", "rr - lamp": "RR-LAMP"}
    paper: Paper = {setting(row): numbers(row, columns) for row in paper_table("fine_transition_lamp")}
    band = {s for _, s in paper}
    runs = shown(records, ("rr", "lamp"), lambda spec: round(spec.sparsity, 6) in band)
    title = "RR and LAMP on ResNet18: top-1 accuracy, %, and the gap, paired by seed"
    ours = _with_gap(groups(runs, RESNET18), "lamp")
    return Section([compare(title, HEAD, ours, paper, stacked=True)], records=runs)


def raw_gap(records: Sequence[Record]) -> Section:
    """RR minus raw shift over the fine transition."""
    runs = shown(records, ("rr", "raw"))
    paper: Paper = {
        key: {"rr": row["rr"], "raw": row["raw"], "rr - raw": Number(row["rr"].mean - row["raw"].mean)}
        for key, row in _fine_sweep().items()
    }
    note = "The paper's gap is the difference of its means; it prints no paired deviation here."
    title = "RR and raw shift on ResNet18: top-1 accuracy, %, and the gap, paired by seed"
    ours = _with_gap(groups(runs, RESNET18), "raw")
    return Section([compare(title, HEAD, ours, paper, note=note, stacked=True)], records=runs)


def transfer(records: Sequence[Record]) -> Section:
    """Other data sets at 95 %."""
    ours = groups(records, RESNET18)
    rows = paper_table("transfer")
    paper: Paper = {(row["Dataset"], 0.95): by_rule(row) for row in rows}
    seeds = ", ".join(f"{row['Dataset']} {row['Seeds']}" for row in rows)
    title = "Transfer data sets, ResNet18, top-1 accuracy, %"
    table = compare(title, HEAD, cells(ours), paper, note=f"The paper's seeds: {seeds}.", stacked=True)
    return Section([table], sweeps(ours) if len(ours) == 1 else {})


def calibration_size(records: Sequence[Record]) -> Section:
    """RR and ERK with fewer calibration images."""
    ours: Cells = {}
    for size in sorted({record.spec.count for record in records}):
        ruled = groups([record for record in records if record.spec.count == size], RESNET18)
        reached = cells(ruled, "global_sparsity")
        for key, row in _with_gap(ruled, "erk").items():
            ours[(*key, size)] = {**row, **({"rr sparsity": reached[key]["rr"]} if "rr" in row else {})}
    columns = {"rr": "RR", "erk": "ERK", "rr - erk": "RR - ERK", "rr sparsity": "RR sparsity"}
    paper: Paper = {}
    note = "The sparsity of rr is over all convolution weights."
    if not ours or of_the_papers_network(records):
        note = f"The paper's are of ResNet18 and seed 0 alone. {note}"
        for line in paper_table("cal_sensitivity"):
            paper["CIFAR100", 0.95, int(line["calibration images"])] = numbers(line, columns)
    title = "Calibration images: top-1 accuracy, %"
    return Section([compare(title, (*HEAD, "images"), ours, paper, note=note, stacked=True)])


def _gaps(ours: Sequence[Group], against: str) -> Cells:
    return gap_cells(ours, {f"rr - {against}": ("rr", against)})


def _with_gap(ours: Sequence[Group], against: str) -> Cells:
    """RR, the other rule, and their paired gap."""
    gap = _gaps(ours, against)
    return {
        key: {**{rule: row[rule] for rule in ("rr", against) if rule in row}, **gap.get(key, {})}
        for key, row in cells(ours).items()
    }


def central_band(some: Mapping[tuple[str, float], Estimate]) -> Interval | None:
    """The longest run of sparsities where the gap is more than two paired standard errors above 0."""
    points = sorted(((s, gap) for (_, s), gap in some.items()), key=lambda point: point[0])
    return longest_run(
        [s for s, _ in points], [beyond_noise(gap) for _, gap in points], [gap.mean for _, gap in points]
    )


def _fine_sweep() -> Paper:
    return {setting(row): by_rule(row) for row in paper_table("fine_transition_full")}
