"""README and docs tell the truth: their Python runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path

import pytest

from repairability.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text()
COMMANDS = re.findall(r"^(repairability .*)$", README, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            exec(compile(block, page.name, "exec"), names)
    if page.name == "README.md":
        assert (tmp_path / "pruned.safetensors").exists()


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In order and in one folder, since the later ones read what the earlier ones wrote."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reproduction").symlink_to(ROOT / "reproduction")
    assert len(COMMANDS) >= 8
    for command in COMMANDS:
        with pytest.raises(SystemExit) as exit_:
            main(shlex.split(command, comments=True)[1:])
        assert not exit_.value.code, f"{command}: {capsys.readouterr().err}"


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)\b", README.replace("make and", ""))) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_it_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:docs|benchmarks|tests|studies)/[\w./]*|[A-Z]+\.md|CITATION\.cff)`", text):
        assert (ROOT / name).exists(), name
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / link).exists(), link
