"""The README tells the truth: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from repairability.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^(repairability .*)$", README, re.MULTILINE)


def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "of the prunable weights" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(shlex.split(command, comments=True)[1:])
    assert not exit_.value.code, capsys.readouterr().err


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)\b", re.sub(r"make and", "", README))) <= targets


def test_the_files_it_names_exist() -> None:
    for name in re.findall(r"`((?:docs|benchmarks)/[\w./]*|[A-Z]+\.md)`", README):
        assert (ROOT / name).exists(), name
