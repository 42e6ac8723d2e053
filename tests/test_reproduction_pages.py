"""The pages of the reproduction: made from the records, and no number in their sentences that is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repairability.errors import InputError
from repairability.report.documents import Renewal
from repairability.report.drawing import drawn_by
from repairability.report.store import Studies
from reproduction.__main__ import main
from reproduction.book import HERE, SOURCE, pages, render, studies
from reproduction.values import VALUE, value, with_values

NUMBER = re.compile(r"(?<![\w.,/-])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\w)")
NOT_WORDS = [SOURCE, VALUE, re.compile(r"<!--.*?-->", re.DOTALL), re.compile(r"`[^`]+`"), re.compile(r"\]\([^)]*\)")]
CODE = re.compile(r"^(    .*|```.*?```)$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def ours() -> Studies:
    return studies()


@pytest.fixture(scope="module")
def made(ours: Studies) -> list[Renewal]:
    return render(ours)


def test_the_pages_are_what_the_records_say(made: list[Renewal]) -> None:
    texts = [each for each in made if isinstance(each.content, str)]
    assert {each.path for each in texts} == set(pages())
    assert [each.path.name for each in texts if each.outdated] == [], "make results"
    assert {file.name for file in (HERE / "pages").glob("*.md")} == {page.name for page in pages()} - {"README.md"}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    files = re.findall(r"`((?:docs|benchmarks|tests|reproduction)/[\w./]*\w)`", text)
    assert [name for name in files if not (HERE.parent / name).exists()] == []


def test_the_figures_are_what_the_records_draw(made: list[Renewal]) -> None:
    """To the byte, where the same libraries drew them."""
    drawn = {each.path.resolve(): each for each in made if isinstance(each.content, bytes)}
    committed = {file.resolve() for file in (HERE / "pages" / "figures").glob("*.svg")}
    assert set(drawn) == committed, "a figure that no page shows is not renewed by make results"
    others = [file.name for file in committed if drawn_by() not in file.read_text()]
    if others:
        pytest.skip(f"{', '.join(others)}: not drawn by {drawn_by()}")
    assert [each.outdated for each in drawn.values() if each.outdated] == []


def settings(ours: Studies) -> set[str]:
    """Every number that a study's settings have, as a sentence writes it."""
    known: set[str] = set()
    for _, records in ours.given.values():
        for spec in (record.spec for record in records):
            grid = () if isinstance(spec.grid, str) else spec.grid
            known |= {f"{100 * s:g}" for s in (spec.sparsity, *grid)}
            counts = (spec.count, spec.test_images, spec.held_out, spec.image_size, spec.num_classes)
            known |= {f"{count:,}" for count in counts if count is not None}
    return known


GIVEN = {"10,000": "test images of CIFAR", "32": "side of a CIFAR image", "20": "batches of BatchNorm recalibration"}
GIVEN |= {"0.1": "its momentum, and the shrinkage of CR", "0.01": "another shrinkage", "0": "nothing pinned"}
GIVEN |= {"98": "% is the end of the paper's sweep", "2.5": "% density, ERK's floor", "1,024": "images of a refit"}
GIVEN |= {
    "2,688": "images of CR+BN",
    "256": "images of operators_images",
    "99.5": "% is the end of our grid",
    "56": "of ResNet56",
    "224": "side of an ImageNet image",
    "1,300": "labelled ImageNet images",
    "1,000": "unlabeled ones",
}
"""Settings that are no field of a run."""


def naked(text: str, known: set[str]) -> list[str]:
    """The numbers of a template that come neither from a record nor from a named source nor from the settings."""
    words = text
    for part in NOT_WORDS:
        words = part.sub(" ", words)
    return [number for number in NUMBER.findall(CODE.sub(" ", words)) if number not in known]


@pytest.mark.parametrize("template", pages().values(), ids=lambda file: file.name)
def test_every_number_of_a_sentence_has_its_source(template: Path, ours: Studies) -> None:
    assert naked(template.read_text(encoding="utf-8"), settings(ours) | set(GIVEN)) == []


def test_a_number_without_a_source_is_found() -> None:
    text = "R20 keeps 36.8 % at 92.5 %, +5.6 from ERK and 1,234 more (`x 7.7`, {{resnet20 90% rr}}).\n"
    sourced = "<!-- source: `python benchmarks/x.py` -->\nIt took 12.5 s.\n<!-- end source -->\n"
    assert naked(text + sourced, {"92.5"}) == ["36.8", "+5.6", "1,234"]


def test_values_are_read_from_the_records(ours: Studies) -> None:
    """As the tables print them."""
    texts = {
        "main_results cifar100 95% rr .2": "49.32",
        "main_results cifar100 95% rr - erk .2": "+0.12",
        "resnet32 95% best - rr": "+3.7",
        "cell main_results main_results | CIFAR100; 95 %; ours | rr": "49.32 ± 0.22",
        "dense resnet50": "73.3",
        "count cts detectors": "18",
        "count cts detectors | informative | yes": "2",
        "paper main_results | CIFAR100; 97.5% | Global": "1.64",
    }
    assert {words: value(words, ours) for words in texts} == texts
    assert with_values("a {{resnet20 92.5% rr}} b {{count\ncts detectors}}", ours) == "a 36.8 b 18"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("main_results 95% rr", "2 cells have these words"),
        ("main_results 95% rx", "no run has 'rx'"),
        ("main_results 95% best", "runs are of several"),
        ("nothing 95% rr", "'nothing'"),
        ("dense main_results", "its runs have 2 dense accuracies"),
        ("cell cts detectors | ResNet18 | core", "6 rows have the labels"),
        ("paper main_result | a | b", "unknown table of the paper 'main_result'"),
    ],
)
def test_wrong_values(words: str, message: str, ours: Studies) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        value(words, ours)


def test_a_study_counts_what_its_file_defines(ours: Studies) -> None:
    entry, records = ours.given["cts_per_seed"]
    assert len(records) == 6 < len(entry.run_ids)
    assert ours.given["transfer"][1] == []
    assert all(record.run_id in entry.run_ids for record in records)


def test_the_command_checks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr("reproduction.__main__.studies", lambda: None)
    monkeypatch.setattr("reproduction.__main__.render", lambda _: [Renewal(page, "text", ["page.md"])])
    assert main(["pages", "--check"]) == 1
    assert not page.exists()
    assert main(["pages"]) == 0
    assert page.read_text() == "text"
    assert capsys.readouterr().out == "out of date: page.md\nrenewed: page.md\n"
