from __future__ import annotations

import pickle

import pytest

from repairability import RepairabilityError
from repairability.errors import MissingExtraError, unknown


def test_unknown_names_near_matches_or_all() -> None:
    assert str(unknown("rule", "lmap", ["lamp", "erk"])) == "unknown rule 'lmap'; did you mean lamp?"
    assert str(unknown("rule", "qqq", ["lamp", "erk"])) == "unknown rule 'qqq'; known: erk, lamp"
    many = [f"name{i:02}" for i in range(20)]
    assert str(unknown("model", "qqq", many)).endswith("name11 and 8 more")
    assert str(unknown("model", "qqq", [])).endswith("known: none")


def test_they_are_also_what_python_expects() -> None:
    with pytest.raises(KeyError):
        raise unknown("layer", "x", [])
    with pytest.raises(ValueError, match="unknown layer"):
        raise unknown("layer", "x", [])
    with pytest.raises(ImportError, match=r"altair is not installed; .*repairability\[report\]"):
        raise MissingExtraError("altair", "report")
    assert issubclass(MissingExtraError, RepairabilityError)


def test_they_travel_between_processes() -> None:
    error = MissingExtraError("altair", "report")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (MissingExtraError, str(error))
