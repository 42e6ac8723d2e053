"""The feature table: cells and evidence of features.toml, and a look at the evidence in the peers' own files."""

from __future__ import annotations

import sys
from pathlib import Path

import records

from repairability.tables import Table

if sys.version_info >= (3, 11):
    import tomllib
else:  # the standard library's reader came with 3.11
    import tomli as tomllib

FEATURES = records.HERE / "features.toml"


def table_of_features() -> tuple[Table, list[str]]:
    """The table, and where each cell was looked up."""
    content = tomllib.loads(FEATURES.read_text(encoding="utf-8"))
    columns: dict[str, str] = content["columns"]
    peers = {name: content[name] for name in records.PEERS}
    rows = [(columns[x], *(cells[x]["is"] for cells in peers.values())) for x in columns]
    caption = f"Checked on {content['checked']} in the files below, of the pinned versions."
    evidence = []
    for name, cells in peers.items():
        places = "; ".join(f"{columns[x]}: {place_of(cell)}" for x, cell in cells.items())
        evidence.append(f"- **{records.PEERS[name].label}**: {places}")
    return Table(("", *(records.PEERS[x].label for x in peers)), rows, caption=caption), evidence


def place_of(cell: dict[str, str]) -> str:
    found = f", has `{cell['has']}`" if "has" in cell else f", lacks `{cell['lacks']}`" if "lacks" in cell else ""
    return f"`{cell['file']}`{found}"


def missing_evidence(cache: Path) -> list[str]:
    """Cells whose file is not there, or does not say what it should."""
    content = tomllib.loads(FEATURES.read_text(encoding="utf-8"))
    wrong = []
    for name in records.PEERS:
        for site in (cache / name / "lib").glob("python*/site-packages"):
            for feature, cell in content[name].items():
                place = site / cell["file"]
                files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
                if not all(x.is_file() for x in files) or not files:
                    wrong.append(f"{name}, {feature}: no {cell['file']}")
                    continue
                text = "\n".join(x.read_text(encoding="utf-8", errors="replace") for x in files).lower()
                if ("has" in cell and cell["has"].lower() not in text) or (
                    "lacks" in cell and cell["lacks"].lower() in text
                ):
                    wrong.append(f"{name}, {feature}: {place_of(cell)} is not so")
    return wrong
