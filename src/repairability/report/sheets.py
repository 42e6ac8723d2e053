"""Every table that a report can fill, by the name of its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repairability.report import tables
from repairability.report.recipes import recipe_rows, recipes_table, shipped_rows, shipped_table
from repairability.tables import Table, csv_text

if TYPE_CHECKING:
    from repairability.report.data import ReportData


def sheets(data: ReportData) -> dict[str, tuple[tables.Rows, Table]]:
    """Every table the data can fill, by the name of its file: the rows at full precision, and the same for people."""
    origin = [{"what": key, "value": text} for key, text in data.provenance.items()]
    made = {"recipes": (recipe_rows(data), recipes_table(data)), "shipped": (shipped_rows(data), shipped_table(data))}
    made |= {
        name: (tables.accuracy_rows(data, measure), tables.accuracy(data, measure))
        for name, measure in tables.MEASURED.items()
    }
    made |= {
        f"allocations_{100 * x:g}": (tables.allocation_rows(data, x), tables.allocations(data, x))
        for x in tables.targets(data)
    }
    made["diagnosis"] = data.diagnosis.rows() if data.diagnosis else [], tables.diagnosis(data)
    made["transition"] = tables.transition_rows(data), tables.transition(data)
    made["provenance"] = origin, tables.printed(origin, ("what", "value"), "How these numbers were made")
    return {name: (rows, table) for name, (rows, table) in made.items() if rows}


def named_tables(data: ReportData) -> dict[str, Table]:
    return {name: table for name, (_, table) in sheets(data).items()}


def named_csv(data: ReportData) -> dict[str, str]:
    """Every table as tidy rows, and `results`, the single runs with the keys of all of them."""
    results = {"results": csv_text(data.results)} if data.results else {}
    return results | {name: csv_text(rows) for name, (rows, _) in sheets(data).items()}
