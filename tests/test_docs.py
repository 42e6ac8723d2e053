"""The pages of docs/ tell the truth: every code block runs, every public name and verb has its place."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import repairability
from documents import DOCS, LANGUAGES, ROOT, blocks_of, check_command, run_blocks, tomllib
from repairability.cli import VERBS
from repairability.pruning import RECIPES
from repairability.repairs import REPAIRS
from repairability.rules import RULES
from repairability.scores import SCORES

WITH_CODE = [page for page in DOCS if blocks_of(page)]
GENERATED = [ROOT / "reproduction" / "README.md", *sorted((ROOT / "reproduction" / "pages").glob("*.md"))]


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {block.language for block in blocks_of(page)} <= set(LANGUAGES)
    assert not re.search(r"^    (repairability|make|pip|python) \S", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_pages_were_read() -> None:
    run = [block for page in WITH_CODE for block in blocks_of(page) if block.is_run]
    assert len(run) > 30
    assert sum(len(block.commands) for block in run if block.language == "bash") > 30


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.name)
def test_the_commands_of_the_reproduction_are_commands(page: Path) -> None:
    """They need data and hours; their options are there."""
    for line in re.findall(r"^ *(repairability .*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        check_command(shlex.split(line, comments=True)[1:])


def test_install_names_what_there_is() -> None:
    page = text_of("install.md")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(extras) - {"dev", "docs"}
    for asked in re.findall(r"'\.\[([\w,]+)\]'", "".join(map(text_of, ("install.md", "quickstart.md")))):
        assert set(asked.split(",")) <= set(extras)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", page, re.MULTILINE)) <= targets


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    listed = [path.rpartition(".")[2] for path in re.findall(r"^::: ([\w.]+)$", text_of("api.md"), re.MULTILINE)]
    assert sorted(listed) == repairability.__all__


def test_every_verb_is_on_the_page_of_the_command_line() -> None:
    table = text_of("command_line.md").split("## Look")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(VERBS)
    used = {words[0] for page in WITH_CODE for block in blocks_of(page) for words in block.commands}
    assert set(VERBS) - used == set()


def test_every_part_of_a_recipe_is_on_their_page() -> None:
    page = text_of("recipes.md")
    for name in (*RECIPES, *RULES, *SCORES, *REPAIRS):
        assert f"`{name}`" in page, name


def test_the_labels_are_the_papers(shared: Path) -> None:
    paper = (shared / "paper" / "paper.tex").read_text(encoding="utf-8")
    labels = set(re.findall(r"`((?:eq|alg|sec|app):\w+)`", text_of("method.md")))
    assert len(labels) > 12
    assert not [label for label in labels if rf"\label{{{label}}}" not in paper]
