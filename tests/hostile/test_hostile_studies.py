"""Studies that lie, or that cannot be: refused when they are read, before the first run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repairability import InputError
from repairability.experiments import Files, RunSpec

DIGITS = {"model": "digits", "data": "digits"}

SPECS: list[tuple[dict[str, Any], str]] = [
    # under another name than it would run
    ({"model": "resnet20", "data": "digits", "weights": "trained"}, "only digits is trained on the spot, not resnet20"),
    ({"model": "digits", "data": "random:10", "weights": "trained"}, "trained on digits, not on random:10"),
    ({**DIGITS, "num_classes": 5, "weights": "trained"}, "for 10 classes, not for 5"),
]


@pytest.mark.parametrize(("given", "message"), SPECS, ids=str)
def test_refused_specs(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RunSpec.read(given)


@pytest.mark.parametrize("name", ["digits", "random:10"])
def test_no_file_takes_the_place_of_what_is_made_on_the_spot(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.npz").write_bytes(b"")
    assert Files([tmp_path]).data(name) == name
