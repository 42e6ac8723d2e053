"""The page docs/reliability.md: what its command makes of pytest's report and of the soak's figures."""

from __future__ import annotations

from pathlib import Path

from benchmarks import reliability

REPORT = """<testsuites><testsuite>
<testcase classname="tests.hostile.test_hostile_numbers" name="test_a[1]"/>
<testcase classname="tests.hostile.test_hostile_numbers" name="test_a[2]"><failure message="no"/></testcase>
<testcase classname="tests.hostile.test_hostile_faults" name="test_a_struck_sweep[driver killed, local, 0]"/>
<testcase classname="tests.hostile.test_hostile_faults" name="test_a_struck_sweep[driver killed, ray, 1]"/>
<testcase classname="tests.hostile.test_hostile_faults" name="test_a_struck_sweep[disk full, local, 0]"><error/>
</testcase>
<testcase classname="tests.hostile.test_hostile_text" name="test_b"><skipped message="not here"/></testcase>
</testsuite></testsuites>"""


def test_cases_are_counted_by_kind(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT, encoding="utf-8")
    cases = reliability.read_report(tmp_path / "report.xml")
    assert [case.outcome for case in cases] == ["right", "wrong", "right", "right", "wrong", "skipped"]
    rows = {row[1]: row[2:] for row in reliability.table_of_cases(cases).rows}
    assert rows["test_hostile_numbers.py"] == ("2", "1", "1", "0")
    assert rows["test_hostile_text.py"] == ("1", "0", "0", "1")
    assert rows[""] == ("6", "3", "2", "1")


def test_rounds_are_counted_by_kind_and_executor(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT, encoding="utf-8")
    table = reliability.table_of_rounds(reliability.read_report(tmp_path / "report.xml"))
    assert table.columns == ("fault", "local", "ray", "rounds", "as undisturbed")
    assert table.rows == [
        ("driver killed", "1", "1", "2", "2"),
        ("disk full", "1", "0", "1", "0"),
        ("all", "2", "1", "3", "2"),
    ]


def test_the_soak_is_a_table_of_its_figures() -> None:
    figures = {"prunes": 500, "memory_mb_start": 300.25, "memory_mb_warm": 410.0, "memory_mb_end": 410.0}
    figures |= {"threads_start": 1, "threads_end": 1}
    assert reliability.table_of_soak(figures).rows == [
        ("prunes", "", "", "500"),
        ("memory mb", "300.2", "410.0", "410.0"),
        ("threads", "1", "", "1"),
    ]


def test_the_page_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT, encoding="utf-8")
    page = reliability.page(reliability.read_report(tmp_path / "report.xml"), {"prunes": 2}, "a command")
    assert "6 cases: 3 right, 2 wrong, 1 skipped. Written by `a command`" in page
    assert "| disk full | 1 | 0 | 1 | 0 |" in page
    assert "| prunes |  |  | 2 |" in page
