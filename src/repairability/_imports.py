"""Importing what a user names as `package.module:callable`."""

from __future__ import annotations

import importlib
from typing import Any

from repairability.errors import InputError, first_line, safe_cause, shown, unknown


def imported(name: str, what: str) -> Any:
    """The callable that `name` names; `what` it is to be ("model", "section") is for the error messages."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise InputError(f"a {what} of your own is named package.module:callable, not {name!r}")
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's own module raises
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        words = f"cannot import {shown(module_name)!r} for the {what} {shown(name)!r}"
        raise InputError(f"{words}: {kind}{first_line(error)}") from safe_cause(error)
    for part in path.split("."):
        if not hasattr(value, part):
            raise unknown(f"name in {module_name}", path, [known for known in dir(value) if not known.startswith("_")])
        value = getattr(value, part)
    if not callable(value):
        raise InputError(f"{name!r} is not callable, so it is no {what}")
    return value
