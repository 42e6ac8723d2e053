from __future__ import annotations

import functools

import pytest

from repairability import InputError
from repairability.naming import name_of, named

KNOWN = {"erk": 1, "lamp": 2}


def test_a_name_finds_its_thing() -> None:
    assert named("rule", "lamp", KNOWN) == 2
    with pytest.raises(InputError, match="unknown rule 'lam'; did you mean lamp?"):
        named("rule", "lam", KNOWN)
    with pytest.raises(InputError, match="a rule is a name or a callable, not int"):
        named("rule", 3, KNOWN)


def test_what_a_callable_is_called() -> None:
    class Named:
        name = "mine"

    assert name_of(len) == "len"
    assert name_of(functools.partial(functools.partial(len))) == "len"
    assert name_of(Named()) == "mine"
    assert name_of(object()) == "object"
