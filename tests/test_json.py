"""JSON, strict both ways."""

from __future__ import annotations

import json
import math
from types import MappingProxyType

import pytest

from repairability import InputError
from repairability._json import DEEPEST, defined, read_json, strict_json


def test_what_is_not_finite_is_null() -> None:
    given = MappingProxyType({"a": [1.5, math.nan, (math.inf,)], "b": {"c": -math.inf}, "d": None, "e": True})
    assert json.loads(strict_json(given), parse_constant=pytest.fail) == {
        "a": [1.5, None, [None]],
        "b": {"c": None},
        "d": None,
        "e": True,
    }
    assert defined({"x": (1, math.nan)}) == {"x": [1, None]}


def test_finite_content_comes_back_as_it_was() -> None:
    given = {"a": [1, 0.1 + 0.2, "\u00fc", None], "b": {"c": True}}
    for text in (strict_json(given), strict_json(given, indent=1), strict_json(given, indent=None)):
        assert read_json(text) == given
    assert strict_json(given, indent=1) == json.dumps(given, indent=1)
    assert strict_json(given, indent=None) == json.dumps(given, separators=(",", ":"))


REFUSED = [
    ("", "is not JSON"),
    ("{", "is not JSON"),
    ("[1, 2", "is not JSON"),
    ("nonsense", "is not JSON"),
    ('{"a": 1, "a": 2}', "says 'a' twice in one object"),
    ('[{"b": {"a": 1, "a": 1}}]', "says 'a' twice in one object"),
    ("[" * 100_000, "nested more than 64 deep"),
    ('{"a":' * 100_000, "nested more than 64 deep"),
    ("[" * DEEPEST + "]" * DEEPEST, "nested more than 64 deep"),
    ("1" * 10_000, "a number has too many digits"),
    ('{"a": "\\ud800"}', "holds half of a character"),
    ('{"\\uDfff": 1}', "holds half of a character"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[f"{i} {x[1]}" for i, x in enumerate(REFUSED)])
def test_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_json(text)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_as_deep_as_is_believed() -> None:
    assert read_json("[" * (DEEPEST - 1) + "]" * (DEEPEST - 1))
    assert read_json('"\\ud83d\\ude00"') == "\U0001f600"
