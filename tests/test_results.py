"""results/ and what the documents say of it: tables between marks, figures, and the commands that renew both."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from repairability import InputError
from repairability.experiments import Record, Store, StudyEntry
from repairability.experiments.archive import read_studies, write_archive
from repairability.report.documents import renew, with_tables
from repairability.report.drawing import drawn_by, render
from repairability.report.markup import to_markdown
from repairability.report.store import Studies, write_store_report
from test_cli_images import run as call
from test_report_studies import SECTIONS, failed, run, study_section, study_tables

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "reproduction" / "results"
README = ROOT / "README.md"
MOST = 2_000_000
FIGURE = "main_results_sweep_cifar100"


# --- what is committed --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results() -> Studies:
    if not RESULTS.is_dir():
        pytest.skip("there is no results/ in this checkout")
    return Studies(read_studies(RESULTS)[0])


def test_results_are_small(results: Studies) -> None:
    assert results.given
    assert sum(file.stat().st_size for file in RESULTS.rglob("*") if file.is_file()) < MOST


def test_the_tables_are_what_results_say(results: Studies) -> None:
    assert with_tables(README.read_text(encoding="utf-8"), results, README.name)[1] == []


# --- on an archive made up ----------------------------------------------------------------------------------------


def made_up() -> list[Record]:
    return [
        run(top1 - s / 10 + 0.01 * seed, rule=rule, sparsity=s, seed=seed)
        for rule, top1 in (("rr", 0.5), ("erk", 0.4), ("lamp", 0.6))
        for s in (0.9, 0.95)
        for seed in (0, 1)
    ]


def entries(records: Sequence[Record]) -> list[StudyEntry]:
    ids = tuple(record.run_id for record in records)
    return [
        StudyEntry(name, f"Of {name}", (SECTIONS[name], *more), "", ids)
        for name, more in (("main_results", ()), ("fine_transition", (SECTIONS["lamp_gap"],)))
    ]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the store runs/, its archive kept/, and a document."""
    monkeypatch.chdir(tmp_path)
    records, store = made_up(), Store("runs")
    for record in records:
        store.write(record)
    for entry in entries(records):
        store.write_study(entry)
    write_archive(store, Path("kept"))
    Path("page.md").write_text(
        f"# Words\n\n<!-- study main_results -->\n<!-- end -->\nMore.\n\n  <!-- study fine_transition 2 -->\nold\n"
        f"<!-- end -->\n\n```\n<!-- study none -->\n```\n\n![Sweep](figures/{FIGURE}.svg)\n",
        encoding="utf-8",
    )
    return tmp_path


@pytest.fixture
def studies() -> Studies:
    records = made_up()
    return Studies([(entry, records) for entry in entries(records)])


def test_tables_between_marks(studies: Studies) -> None:
    text = "a\n<!-- study main_results -->\nold\n\n<!-- end -->\n<!--study  fine_transition   2-->\n<!-- end -->\nz"
    new, outdated = with_tables(text, studies)
    (main,) = study_tables("main_results", made_up())
    _, gap = study_tables("fine_transition", made_up())
    assert outdated == ["study main_results", "study fine_transition 2"]
    assert new == (
        f"a\n<!-- study main_results -->\n\n{to_markdown(main)}\n<!-- end -->\n"
        f"<!--study  fine_transition   2-->\n\n{to_markdown(gap)}\n<!-- end -->\nz"
    )
    assert with_tables(new, studies) == (new, [])
    assert with_tables("nothing to do\n", studies) == ("nothing to do\n", [])


def test_the_list_of_studies(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shared runs count once; failed and missing ones are there."""
    store = Store("runs")
    bad = failed(rule="raw")
    store.write(bad)
    store.write_study(StudyEntry("third", "Third", ("accuracy",), "", (bad.run_id, "gone")))
    code, out, err = call(capsys, "list", "--store", "runs", "--json")
    assert code == 0, err
    table = json.loads(out)
    assert [row[0] for row in table["rows"]] == ["fine_transition", "main_results", "third"]
    assert table["rows"][2] == ["third", "Third", "2", "0", "1", "1", "0.03"]
    assert table["rows"][0][2:] == ["12", "12", "0", "0", "0.40"]  # 120 seconds each
    assert table["caption"].startswith("13 runs in all, 1 of them failed, 0.43 hours")
    Path("list.md").write_text("<!-- studies -->\n<!-- end -->\n", encoding="utf-8")
    code, _, err = call(capsys, "renew", "list.md", "--store", "runs")
    assert code == 0, err
    assert "| third | Third | 2 | 0 | 1 | 1 | 0.03 |" in Path("list.md").read_text(encoding="utf-8")


def test_the_tables_of_one_section(studies: Studies) -> None:
    _, gap = study_tables("fine_transition", made_up())
    (lamp,) = study_tables("lamp_gap", made_up())
    made = {
        mark: with_tables(f"<!-- study fine_transition {mark} -->\n<!-- end -->", studies)[0].split("\n\n", 1)[1]
        for mark in ("lamp_gap", "lamp_gap 1", "3", "fine_transition 2", "2")
    }
    assert made["lamp_gap"] == made["lamp_gap 1"] == made["3"] == f"{to_markdown(lamp)}\n<!-- end -->"
    assert made["fine_transition 2"] == made["2"] == f"{to_markdown(gap)}\n<!-- end -->"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "<!-- study main_result -->\n<!-- end -->",
            "page, line 1: unknown study 'main_result'; did you mean main_results",
        ),
        (
            "\n<!-- study x -->\n1\n2\n<!-- end -->",
            "page, line 2: unknown study 'x'; known: fine_transition, main_results",
        ),
        ("<!-- study main_results -->\nx", "page: the mark 'study main_results' is not closed by <!-- end -->"),
        ("<!-- study main_results -->\n<!-- study a -->\n<!-- end -->", "line 2: another mark begins before"),
        ("a\n<!-- end -->", "page, line 2: <!-- end --> closes nothing"),
        ("<!-- study main_results 2 -->\n<!-- end -->", "study main_results has tables 1 to 1, not 2"),
        (
            "<!-- study fine_transition lamp -->\n<!-- end -->",
            "page, line 1: unknown section of fine_transition 'lamp'; did you mean lamp_gap",
        ),
        (
            "<!-- study fine_transition lamp_gap 2 -->\n<!-- end -->",
            "page, line 1: study fine_transition lamp_gap has tables 1 to 1, not 2",
        ),
        (
            "<!-- study main_results two 1 2 -->\n<!-- end -->",
            "line 1: a mark is studies or study NAME [SECTION] [NUMBER], not 'study main_results two 1 2'",
        ),
        ("<!-- study -->\n<!-- end -->", "a mark is studies or study NAME [SECTION] [NUMBER], not 'study'"),
        ("<!-- studies 2 -->\n<!-- end -->", "a mark is studies or study NAME [SECTION] [NUMBER], not 'studies 2'"),
    ],
)
def test_wrong_marks(text: str, message: str, studies: Studies) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        with_tables(text, studies, "page")


def test_pictures_of_a_document(studies: Studies, tmp_path: Path) -> None:
    (tmp_path / "own.svg").write_text("mine")
    page = tmp_path / "page.md"
    page.write_text(
        f'![x](own.svg)\n![y](http://a/b.svg) ![z](f/{FIGURE}.svg "title")\n<img alt="" src="g/{FIGURE}.svg">\n'
        f"![again](f/{FIGURE}.svg)"
    )
    _, *figures = renew(page, studies)
    assert [(each.path, each.outdated) for each in figures] == [
        (tmp_path / folder / f"{FIGURE}.svg", [f"figure {FIGURE}"]) for folder in "fg"
    ]
    page.write_text(f"![x]({FIGURE}x.svg)")
    with pytest.raises(InputError, match=f"unknown figure '{FIGURE}x'; did you mean {FIGURE}"):
        renew(page, studies)


def test_figures_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    """Also where the same figure was drawn as something else before."""
    records = made_up()
    given = [(entry, records) for entry in entries(records)]
    first = write_store_report(given, [], tmp_path / "a", ["svg"])
    second = write_store_report(given, [], tmp_path / "b.html", ["html", "png", "pdf", "svg"])
    again = {path.name: path.read_bytes() for path in second if path.suffix == ".svg"}
    assert f"{FIGURE}.svg" in again
    assert {path.name: path.read_bytes() for path in first} == again
    assert drawn_by().encode() in again[f"{FIGURE}.svg"]
    figure = study_section("main_results", records).figures["sweep_cifar100"]()
    assert figure is not None
    assert render(figure, "svg") == again[f"{FIGURE}.svg"]


def test_a_document_is_renewed_and_checked(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("page.md").read_text(encoding="utf-8")
    code, out, _ = call(capsys, "renew", "page.md", "--store", "kept", "--check")
    assert code == 1
    assert "out of date in page.md: study main_results, study fine_transition 2" in out
    assert f"figure {FIGURE}" in out
    assert Path("page.md").read_text(encoding="utf-8") == before
    assert not Path("figures").exists()
    code, out, err = call(capsys, "renew", "page.md", "page.md", "--store", "kept")
    assert code == 0, err
    assert "renewed in page.md" in out
    text = Path("page.md").read_text(encoding="utf-8")
    assert "| CIFAR100 | 95 % | ours |" in text
    assert text.startswith("# Words\n\n<!-- study main_results -->\n\n**Recovered")
    assert "old" not in text.split("<!-- study fine_transition 2 -->")[1].split("\n")
    code, out, _ = call(capsys, "renew", "page.md", "--store", "runs", "--check", "--json")
    assert code == 0, out
    assert json.loads(out)["outdated"] == {}
    svg = Path("figures") / f"{FIGURE}.svg"
    svg.write_bytes(svg.read_bytes() + b"\n")
    Path("page.md").write_text(
        text.replace("| CIFAR100 | 95 % | ours | ", "| CIFAR100 | 95 % | ours | 9"), encoding="utf-8"
    )
    code, out, _ = call(capsys, "renew", "page.md", "--store", "kept", "--check", "--json")
    assert code == 1
    assert json.loads(out)["outdated"] == {"page.md": ["study main_results"], str(svg): [f"figure {FIGURE}"]}


@pytest.mark.parametrize("store", ["runs", "kept"])
def test_tables_of_a_study_are_printed(store: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "report", "--store", store, "--study", "main_results")
    assert code == 0, err
    (main,) = study_tables("main_results", Store("runs").read_all()[0])
    assert out == f"{main}\n\nmain_results: 12 of 12 runs done\n"
    both = ("--study", "fine_transition", "--study", "main_results", "--study", "fine_transition")
    code, out, _ = call(capsys, "report", "--store", store, *both, "--json")
    found = json.loads(out)["studies"]
    assert [(each["study"], len(each["tables"])) for each in found] == [("fine_transition", 3), ("main_results", 1)]
    assert found[1]["tables"][0]["rows"] == [list(row) for row in main.rows]
    assert not Path("report.html").exists()


def test_files_of_some_studies(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--study", "main_results", "--out", "some", "--format", "svg,md")
    code, _, err = call(capsys, "report", "--store", "kept", *given)
    assert code == 0, err
    assert {file.name for file in Path("some").iterdir()} == {f"{FIGURE}.svg", "main_results.md"}
    code, _, _ = call(capsys, "report", "--store", "kept")
    assert code == 0
    assert Path("report.html").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["report", "--store", "kept", "--study", "main_result"],
            "unknown study 'main_result'; did you mean main_results",
        ),
        (["report", "--store", "kept", "--study", "q"], "unknown study 'q'; known: fine_transition, main_results"),
        (
            ["report", "page.md", "--study", "main_results"],
            "either a FILE or --store DIR, and --study only with a store",
        ),
        (["report", "page.md", "--store", "kept"], "either a FILE or --store DIR"),
        (["renew", "nothing.md", "--store", "kept"], "cannot read nothing.md"),
        (["renew", "page.md", "--store", "nowhere"], "there is no store at nowhere"),
        (["list", "--store", "nowhere"], "there is no store at nowhere"),
        (["archive", "--store", "kept", "--out", "x"], "kept is an archive already"),
    ],
)
def test_wrong_requests(given: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, *given)
    assert code == 2
    assert message in " ".join(err.split())
