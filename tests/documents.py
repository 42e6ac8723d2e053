"""The code blocks of a Markdown page: read, run in order, or, where their title says that they are not run, checked.

A page's blocks share one namespace and one folder, as a reader's would.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

import repairability
from repairability.cli import app, main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
LANGUAGES = ("python", "bash", "toml", "text")
NOT_RUN = "not run"

_FENCE = re.compile(r'^( *)```(\w*)(?: title="([^"]*)")? *\n(.*?)^ *```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str

    @property
    def is_run(self) -> bool:
        return NOT_RUN not in self.title

    @property
    def commands(self) -> list[list[str]]:
        """The words of each call of our command line, in order."""
        lines = (shlex.split(line, comments=True) for line in self.text.splitlines())
        return [words[1:] for words in lines if words[:1] == ["repairability"]]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [Block(match[2], match[3] or "", match[4]) for match in _FENCE.finditer(text)]
    assert 2 * len(found) == len(re.findall(r"^ *```", text, re.MULTILINE)), f"{page.name}: a fence that is not read"
    return found


def run_blocks(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python and our commands run in `folder`, in which the reproduction's studies lie; the others are checked."""
    monkeypatch.chdir(folder)
    (folder / "reproduction").symlink_to(ROOT / "reproduction")
    names: dict[str, object] = {}
    for block in blocks_of(page):
        if not block.is_run or block.language not in ("python", "bash"):
            check(block)
        elif block.language == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(block.text, page.name, "exec"), names)
        else:
            for words in block.commands:
                run_command(words)


def run_command(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code, f"repairability {shlex.join(words)}"


def check(block: Block) -> None:
    """It is written as its language wants it, names what is there, and its commands have these options."""
    if block.language == "python":
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rp":
                assert hasattr(repairability, node.attr), node.attr
    elif block.language == "toml":
        tomllib.loads(block.text)
    for words in block.commands if block.language == "bash" else ():
        check_command(words)


def check_command(words: list[str]) -> None:
    group = typer.main.get_command(app)
    group.commands[words[0]].make_context(words[0], words[1:])  # type: ignore[attr-defined]
