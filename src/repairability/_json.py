"""JSON, strict both ways: what is written every reader takes, and what cannot be read is refused in one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from repairability.errors import InputError, first_twice, shortened

DEEPEST = 64
"""Levels of nesting, beyond which a text is not believed; ours have a dozen."""


def strict_json(content: object, *, indent: int | None = 2, default: Callable[[Any], Any] | None = None) -> str:
    """Plain content as JSON, without an indent as short as it can be: a number that is not finite is null, since JSON
    has no word for it.
    """
    separators = (",", ":") if indent is None else None
    return json.dumps(defined(content), indent=indent, separators=separators, default=default, allow_nan=False)


def defined(content: Any) -> Any:
    """The same content with None in the place of every number that is not finite."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: defined(value) for key, value in content.items()}
    return [defined(value) for value in content] if isinstance(content, (list, tuple)) else content


def read_json(text: str) -> Any:
    """The content of a JSON text. What stands twice in one object, or is nested beyond sense, is refused: of the one a
    part would be lost, and the other is no file of anybody's.
    """
    try:
        content = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise InputError(f"this is not JSON: {error}") from error
    except RecursionError as error:
        raise InputError(_TOO_DEEP) from error
    except InputError:
        raise
    except ValueError as error:
        raise InputError("this is not JSON that can be read: a number has too many digits") from error
    _check_depth(content)
    if "\\ud" in text.lower():
        _check_characters(content)
    return content


_TOO_DEEP = f"this is not JSON that can be read: it is nested more than {DEEPEST} deep"


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    twice = first_twice(key for key, _ in pairs)
    if twice is not None:
        raise InputError(f"this JSON says {shortened(twice)} twice in one object")
    return dict(pairs)


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(DEEPEST):
        holders = [value for value in level if isinstance(value, (dict, list))]
        if not holders:
            return
        level = [value for held in holders for value in (held.values() if isinstance(held, dict) else held)]
    raise InputError(_TOO_DEEP)


def _check_characters(content: Any) -> None:
    """No half of a character: no file could hold it again."""
    try:
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError("this is not JSON that can be read: it holds half of a character") from error
