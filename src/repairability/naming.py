"""Names or callables: how a name finds its rule, score, repair or solver, and what a callable is called."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TypeVar

from repairability.errors import InputError, unknown

Thing = TypeVar("Thing")


def named(kind: str, given: object, registry: Mapping[str, Thing]) -> Thing:
    """The registry's thing of this name; a name nobody knows, or what is no name, is an error that says what is."""
    if not isinstance(given, str):
        raise InputError(f"a {kind} is a name or a callable, not {type(given).__name__}")
    if given not in registry:
        raise unknown(kind, given, registry)
    return registry[given]


def name_of(function: object) -> str:
    """What a callable is called in tables and records."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "name", None) or getattr(function, "__name__", None) or type(function).__name__)
