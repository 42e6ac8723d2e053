"""What each study prints: records in, tables (ours beside the paper's) and figures out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from repairability.errors import unknown
from repairability.experiments.store import Record
from repairability.tables import Table
from reproduction.sections.accuracies import (
    accuracy,
    calibration_size,
    fine_transition,
    lamp_gap,
    main_results,
    paired_gap,
    raw_gap,
    transfer,
)
from reproduction.sections.allocations import (
    achieved_sparsity,
    allocation_correlation,
    erk_cap,
    layerwise,
    projection_forced,
)
from reproduction.sections.architectures import architecture_summary, resnet34, vgg16_bn
from reproduction.sections.boundaries import boundaries
from reproduction.sections.choice import choice
from reproduction.sections.cost import diagnostic_cost
from reproduction.sections.detections import consistency, cts_per_seed, detectors, majority_cores
from reproduction.sections.groups import data_name, model_name
from reproduction.sections.section import Section
from reproduction.sections.settings import settings

SECTIONS: dict[str, Callable[[Sequence[Record]], Section]] = {
    "main_results": main_results,
    "paired_gap": paired_gap,
    "fine_transition": fine_transition,
    "lamp_gap": lamp_gap,
    "raw_gap": raw_gap,
    "projection_forced": projection_forced,
    "layerwise": layerwise,
    "allocation_correlation": allocation_correlation,
    "erk_cap": erk_cap,
    "achieved_sparsity": achieved_sparsity,
    "vgg16_bn": vgg16_bn,
    "resnet34": resnet34,
    "architecture_summary": architecture_summary,
    "cts_per_seed": cts_per_seed,
    "majority_cores": majority_cores,
    "consistency": consistency,
    "transfer": transfer,
    "calibration_size": calibration_size,
    "diagnostic_cost": diagnostic_cost,
    "accuracy": accuracy,
    "boundaries": boundaries,
    "choice": choice,
    "settings": settings,
    "detectors": detectors,
}
"""A section's name, as studies/*.toml give it, and what makes it of the study's records, failed ones included."""

SMOKE = "Smoke run: figures mean nothing."


def study_section(section: str, records: Sequence[Record], *, smoke: bool = False) -> Section:
    """A section of these records, each caption completed by what every figure must carry: network, data, dense
    accuracy, commit, hardware, failed runs, and whether it was a smoke run.
    """
    if section not in SECTIONS:
        raise unknown("section", section, SECTIONS)
    made, words = SECTIONS[section](records), _origin(records, smoke)
    tables = [replace(table, caption=" ".join(x for x in (table.caption, words) if x)) for table in made.tables]
    return Section(tables, made.figures)


def study_tables(section: str, records: Sequence[Record], *, smoke: bool = False) -> list[Table]:
    """Only the tables; this needs no optional dependency."""
    return list(study_section(section, records, smoke=smoke).tables)


def _origin(records: Sequence[Record], smoke: bool) -> str:
    good = [record for record in records if record.status == "done"]
    failed = len(records) - len(good)
    parts = [f"{'; '.join(dict.fromkeys(map(_place, good)))}."] if good else []
    for name in ("commit", "hardware"):
        known = dict.fromkeys(str(record.provenance[name]) for record in good if name in record.provenance)
        parts += [f"{name.capitalize()}: {', '.join(known)}."] if known else []
    parts += [f"{failed} of {len(records)} runs failed and are left out."] if failed else []
    return " ".join([*parts, *([SMOKE] if smoke else [])])


def _place(record: Record) -> str:
    words = f"{model_name(record.spec.model)} on {data_name(record.spec.data)}"
    top1 = record.result.get("dense_top1")
    return words if top1 is None else f"{words} (dense {100 * top1:.2f} %)"


__all__ = ["SECTIONS", "SMOKE", "Section", "study_section", "study_tables"]
