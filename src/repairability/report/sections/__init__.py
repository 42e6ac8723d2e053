"""What a study prints: sections, records in, tables and charts out. By name, or `package.module:callable`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from repairability._imports import imported
from repairability.errors import InputError, unknown
from repairability.experiments.record import Record
from repairability.experiments.study import section_name
from repairability.naming import name_of
from repairability.report.sections.accuracy import accuracy
from repairability.report.sections.detectors import detectors
from repairability.report.sections.section import SMOKE, Draw, Section, origin
from repairability.report.sections.settings import recipes, settings

MakeSection = Callable[[Sequence[Record]], Section]

SECTIONS: dict[str, MakeSection] = {
    "accuracy": accuracy,
    "settings": settings,
    "recipes": recipes,
    "detectors": detectors,
}
"""What makes a section of a study's records, failed ones included."""


def get_section(section: str | MakeSection) -> MakeSection:
    """A section by its name here or by `package.module:callable`; a callable is its own.

    A name may come out of somebody's store, so what it names is called only where it says that it returns a Section.
    """
    if not isinstance(section, str):
        return section
    if ":" in section:
        make: MakeSection = imported(section, "section")
        promised = getattr(make, "__annotations__", {}).get("return")
        if promised is not Section and str(promised).rpartition(".")[2] != Section.__name__:
            raise InputError(f"{section!r} is no section: it does not say that it returns one (-> Section)")
        return make
    if section not in SECTIONS:
        hint = "others are named package.module:callable (is the store of an earlier version? sweep the study again)"
        raise InputError(f"{unknown('section', section, SECTIONS)}; {hint}")
    return SECTIONS[section]


def study_sections(
    names: Sequence[str | MakeSection], records: Sequence[Record], *, smoke: bool = False
) -> dict[str, Section]:
    """The sections of these records by their short names, each caption completed by where its numbers come from."""
    made = {}
    for name in names:
        section = get_section(name)(records)
        if not isinstance(section, Section):
            raise InputError(f"the section {name!r} returned {type(section).__name__}, not a Section")
        words = origin(records if section.records is None else section.records, smoke=smoke)
        tables = [replace(table, caption=" ".join(x for x in (table.caption, words) if x)) for table in section.tables]
        made[section_name(name) if isinstance(name, str) else name_of(name)] = replace(section, tables=tables)
    return made


def joined(sections: Mapping[str, Section]) -> Section:
    """Several as one: the tables one after the other; of two charts of one name the later has its section's too."""
    figures: dict[str, Draw] = {}
    for name, section in sections.items():
        for chart, draw in section.figures.items():
            figures[f"{name}_{chart}" if chart in figures else chart] = draw
    return Section([table for section in sections.values() for table in section.tables], figures)


def study_section(names: Sequence[str | MakeSection], records: Sequence[Record], *, smoke: bool = False) -> Section:
    """All that a study prints, in one; its tables need no optional dependency."""
    return joined(study_sections(names, records, smoke=smoke))


__all__ = ["SECTIONS", "SMOKE", "Section", "get_section", "joined", "study_section", "study_sections"]
