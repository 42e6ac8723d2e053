"""What a user names as `package.module:callable`."""

from __future__ import annotations

import importlib
from typing import Any

from repairability.errors import InputError, unknown


def imported(name: str, what: str) -> Any:
    """The callable of that name; `what` says in messages what it is for, such as "model"."""
    module_name, _, attribute = name.partition(":")
    try:
        thing: Any = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:  # ValueError: an empty name
        raise InputError(f"cannot import {module_name!r} for the {what} {name!r}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(thing, part):
            raise unknown(f"name in {module_name}", attribute, [x for x in dir(thing) if not x.startswith("_")])
        thing = getattr(thing, part)
    if not callable(thing):
        raise InputError(f"{name!r} is not callable")
    return thing
