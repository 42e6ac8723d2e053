"""A study's sections, the runs of other studies, and how a store keeps it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from repairability import RECIPES, InputError, Recipe
from repairability.experiments import RunSpec, Store, StudyEntry, describe, only, read_study, smoke
from repairability.experiments.study import section_name
from repairability.report.sections import SECTIONS, Section, get_section, joined, study_section
from repairability.tables import Table

BASE = '[base]\nmodel = "digits"\ndata = "digits"\n[axes]\n'


def written(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


def test_sections(tmp_path: Path) -> None:
    cells = f"{BASE}seed = [0]\n"
    folder = written(
        tmp_path,
        none=cells,
        one=f'section = "settings"\n{cells}',
        more=f'sections = ["settings", "reproduction.sections.accuracies:main_results"]\n{cells}',
    )
    assert read_study(folder / "none.toml").sections == ("accuracy",)
    assert read_study(folder / "one.toml").sections == ("settings",)
    more = read_study(folder / "more.toml")
    assert [section_name(section) for section in more.sections] == ["settings", "main_results"]
    assert smoke(more).sections == more.sections


def test_the_runs_of_other_studies(tmp_path: Path) -> None:
    """Its own cells first, then theirs, each once; with none of its own it needs no base."""
    (tmp_path / "deeper").mkdir()
    folder = written(
        tmp_path,
        a=f'{BASE}rule = ["rr", "erk"]\n',
        b=f'runs_of = ["a"]\n{BASE}rule = ["erk", "lamp"]\n',
        c='runs_of = ["a", "b"]\n',
    )
    written(tmp_path / "deeper", d='runs_of = ["../c"]\n')
    rules = {name: [spec.rule for spec in read_study(folder / f"{name}.toml").specs] for name in ("a", "b", "c")}
    assert rules == {"a": ["rr", "erk"], "b": ["erk", "lamp", "rr"], "c": ["rr", "erk", "lamp"]}
    deeper = read_study(tmp_path / "deeper" / "d.toml")
    assert (deeper.name, [spec.rule for spec in deeper.specs]) == ("d", ["rr", "erk", "lamp"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('runs_of = ["x"]\n', "x.toml, line 1: runs_of leads back to the study itself"),
        ('runs_of = ["y"]\n', "x.toml: cannot read .*y.toml"),
        ('runs_of = "y"\n', "x.toml, line 1: runs_of: Input should be a valid list, not 'y'"),
        ("sections = [1]\n", r"x.toml, line 1: sections.0: Input should be a valid string, not 1"),
        ('section = "a"\nsections = ["b"]\n', "either section or sections"),
        ('sections = ["settings", "my.module:settings"]\n', "two sections are called 'settings'"),
        ('sectons = ["settings"]\n', "unknown key 'sectons'; did you mean sections"),
    ],
)
def test_wrong_studies(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_study(written(tmp_path, x=f"{text}{BASE}seed = [0]\n") / "x.toml")


def test_a_recipe_stands_for_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In base, cases and axes; what is said beside it comes first, and options go with their rule."""
    mine = Recipe("erk", "activation", "reconstruct", {"cap": 0.99}, name="mine")
    monkeypatch.setitem(RECIPES, "mine", mine)
    network = '[base]\nmodel = "digits"\ndata = "digits"\n'
    folder = written(
        tmp_path,
        base=f'{network}recipe = "mine"\n',
        beside=f'{network}recipe = "mine"\nrepair = "cr"\n[base.options]\nfloor = 0.1\n',
        rules=f'{network}recipe = "mine"\n[axes]\nrule = ["residual", "erk", "auto"]\n',
        cases=f'{network}[[cases]]\nrecipe = "mine"\n[[cases]]\nrecipe = "paper"\nseed = 3\n',
        axes=f'{network}[axes]\nrecipe = ["mine", "paper"]\nsparsity = [0.5, 0.9]\n'
        '[[exclude]]\nrecipe = "paper"\nsparsity = 0.5\n',
    )

    def parts(name: str) -> list[tuple[object, ...]]:
        return [(x.rule, x.score, x.repair, x.options) for x in read_study(folder / f"{name}.toml").specs]

    whole, paper = ("erk", "activation", "reconstruct", {"cap": 0.99}), ("rr", "magnitude", "cr+bn", {})
    assert parts("base") == [whole]
    assert parts("beside") == [("erk", "activation", "cr", {"cap": 0.99, "floor": 0.1})]
    assert parts("rules") == [(rule, "activation", "reconstruct", {}) for rule in ("residual", "erk", "auto")]
    assert parts("cases") == [whole, paper]
    assert parts("axes") == [whole, whole, paper]
    assert [x.sparsity for x in only(read_study(folder / "axes.toml"), ["recipe=paper"]).specs] == [0.9]


def test_a_run_of_a_recipe_is_the_run_of_its_parts() -> None:
    given = {"model": "digits", "data": "digits"}
    strong = RECIPES["strong"]
    said = {"rule": strong.rule, "score": strong.score, "repair": strong.repair, "options": strong.options}
    short, long = RunSpec.read({**given, "recipe": "strong"}), RunSpec.read({**given, **said})
    assert short == long
    assert short.run_id({}) == long.run_id({})
    assert "recipe" not in short.to_dict()
    assert RunSpec.read({**given, "recipe": "paper"}) == RunSpec.read(given)  # a spec's defaults are the paper's
    assert "recipe" in [name for name, _, _ in describe()]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('recipe = "weak"', "x.toml: unknown recipe 'weak'; known: fast, paper, strong"),
        ("recipe = 3", "x.toml: a recipe is one of strong, fast, paper or a Recipe, not int"),
        ('recipe = "fast"\noptions = 3', "x.toml, line 5: options: Input should be a valid dict"),
    ],
)
def test_wrong_recipes(line: str, message: str, tmp_path: Path) -> None:
    text = f'[base]\nmodel = "digits"\ndata = "digits"\n{line}\n'
    with pytest.raises(InputError, match=message):
        read_study(written(tmp_path, x=text) / "x.toml")


def test_a_store_keeps_it_and_reads_what_earlier_versions_wrote(tmp_path: Path) -> None:
    store = Store(tmp_path)
    study = read_study(written(tmp_path, new=f'sections = ["accuracy", "settings"]\n{BASE}seed = [0]\n') / "new.toml")
    store.write_study(replace(study, run_ids=("x", "y")))
    old = {"name": "old", "title": "Old", "section": "accuracy", "about": "", "run_ids": ["x"], "smoke": True}
    (tmp_path / "studies" / "old.json").write_text(json.dumps(old))
    whole = [
        StudyEntry("new", "new", ("accuracy", "settings"), "", ("x", "y")),
        StudyEntry("old", "Old", ("accuracy",), "", ("x",), smoke=True),
    ]
    assert store.studies() == (whole, [])
    (tmp_path / "studies" / "odd.json").write_text('{"name": "odd"}')
    entries, (problem,) = store.studies()
    assert entries == whole
    assert "odd.json is not a study" in problem


def test_a_section_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from repairability.report.sections import Section\n"
        "from repairability.tables import Table\n"
        "class Own:\n"
        "    def runs(records) -> Section:\n"
        '        return Section([Table(("runs",), [(str(len(records)),)])], {"x": list})\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    section = study_section(("settings", "mine:Own.runs"), [])
    assert [table.rows for table in section.tables] == [[], [("0",)]]
    assert list(section.figures) == ["x"]
    assert section_name("mine:Own.runs") == "runs"
    sys.modules.pop("mine")
    with pytest.raises(InputError, match="unknown section 'mine.runs'; known: accuracy, detectors, recipes, settings"):
        get_section("mine.runs")


def test_charts_of_one_name_are_told_apart_by_their_section() -> None:
    first, second = (Section([Table(("a",), [])], {"sweep": draw}) for draw in (list, dict))
    both = joined({"one": first, "two": second})
    assert both.figures == {"sweep": list, "two_sweep": dict}
    assert len(both.tables) == 2


def test_every_section_of_the_library_says_so_when_there_are_no_runs() -> None:
    for name in SECTIONS:
        (table,) = study_section((name,), []).tables
        assert (list(table.rows), table.caption.startswith("No ")) == ([], True)
