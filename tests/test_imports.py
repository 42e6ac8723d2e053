from __future__ import annotations

from pathlib import Path

import pytest

from repairability import InputError
from repairability._imports import imported


def test_what_a_user_names() -> None:
    assert imported("pathlib:Path", "model") is Path
    assert imported("pathlib:Path.cwd", "model") == Path.cwd


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:x", "cannot import 'no_such_module' for the model 'no_such_module:x'"),
        ("pathlib:Pat", "unknown name in pathlib 'Pat'; did you mean .*Path"),
        ("math:pi", "'math:pi' is not callable"),
        (":x", "not ':x'"),
    ],
)
def test_what_cannot_be_imported_is_said(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        imported(name, "model")
