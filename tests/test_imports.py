from __future__ import annotations

from pathlib import Path

import pytest

from repairability import InputError
from repairability._imports import imported


def test_a_callable_by_its_name() -> None:
    assert imported("pathlib:Path", "model") is Path
    assert imported("pathlib:Path.cwd", "section")() == Path.cwd()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pathlib", "a model of your own is named package.module:callable, not 'pathlib'"),
        (":Path", "a model of your own is named"),
        ("pathlib:", "a model of your own is named"),
        ("no_such_package:net", "cannot import 'no_such_package' for the model 'no_such_package:net'"),
        ("broken_module:net", "cannot import 'broken_module' for the model 'broken_module:net': ZeroDivisionError"),
        ("pathlib:Pth", "unknown name in pathlib 'Pth'; did you mean Path"),
        ("os:sep", "'os:sep' is not callable, so it is no model"),
        (".relative:net", "cannot import '.relative'"),
    ],
)
def test_clear_errors(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=message):
        imported(name, "model")
