"""The README tells the truth: its Python runs, its commands exist; links of README and docs lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from documents import DOCS, ROOT, run_blocks, run_command

PAGES = [ROOT / "README.md", *DOCS]
README = PAGES[0].read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(repairability .*)$", README, re.MULTILINE)


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks(PAGES[0], tmp_path, monkeypatch)
    assert (tmp_path / "pruned.safetensors").exists()


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order and in one folder, since the later ones read what the earlier ones wrote."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reproduction").symlink_to(ROOT / "reproduction")
    assert len(COMMANDS) >= 4
    for command in COMMANDS:
        run_command(shlex.split(command, comments=True)[1:])


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)\b", README.replace("make and", ""))) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_it_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:docs|benchmarks|tests|studies)/[\w./]*|[A-Z]+\.md|CITATION\.cff)`", text):
        assert (ROOT / name).exists(), name
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / link).exists(), link
