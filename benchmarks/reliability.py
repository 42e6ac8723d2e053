"""What hostile input, faults and long use do to it: every case of tests/hostile, the rounds of faults, the soak.

python benchmarks/reliability.py [--quick] [--write]: the tables, and with --write the page docs/reliability.md. --quick
leaves out what is slow: the rounds of faults, and most of the soak's prunes.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from repairability.provenance import provenance
from repairability.report.markup import to_markdown
from repairability.tables import Table

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "hostile"
SOAK = ROOT / "benchmarks" / "soak.py"
PAGE = ROOT / "docs" / "reliability.md"
PRUNES = 500
ROUND = re.compile(r"test_a_struck_sweep\w*\[(?P<kind>.+), (?P<executor>\w+), \d+\]")
INTRODUCTION = """\
What is given to it that it cannot mean, what strikes it while it works, and what is left of it after long use.
`tests/hostile` holds the cases; `make check` runs them all. A fault strikes a sweep at a moment drawn by seed; then the
sweep is started again, as a user would, and must end as an undisturbed one does: the same records, none made twice, no
half file, no lock held, no process left."""


@dataclass(frozen=True)
class Case:
    """One test that ran: the stem of its file, its name, and "right", "wrong" or "skipped"."""

    file: str
    name: str
    outcome: str


def ran(quick: bool) -> list[Case]:
    """Every case of the folder, from an actual run."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(CASES)]
        settings = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *(("-m", "not slow") if quick else ())], cwd=ROOT, env=settings, check=False)
        return read_report(report)


def read_report(report: Path) -> list[Case]:
    """The cases of pytest's report."""
    cases = []
    for case in ElementTree.parse(report).iter("testcase"):
        marks = {child.tag for child in case}
        outcome = "wrong" if marks & {"failure", "error"} else "skipped" if "skipped" in marks else "right"
        cases.append(Case(case.attrib["classname"].rpartition(".")[2], case.attrib["name"], outcome))
    return cases


def kind_of(file: str) -> str:
    """The first sentence of a test file's docstring."""
    text = ast.get_docstring(ast.parse((CASES / f"{file}.py").read_text(encoding="utf-8"))) or file
    return " ".join(text.split("\n\n")[0].split())


def table_of_cases(cases: Sequence[Case]) -> Table:
    """A line for each kind of case: how many there are, how many are right."""
    rows = []
    for file in dict.fromkeys(case.file for case in cases):
        outcomes = Counter(case.outcome for case in cases if case.file == file)
        rows.append((kind_of(file), f"{file}.py", *counted(outcomes)))
    rows.append(("all", "", *counted(Counter(case.outcome for case in cases))))
    return Table(("what is given, what must happen", "tests/hostile", "cases", "right", "wrong", "skipped"), rows)


def table_of_rounds(cases: Sequence[Case]) -> Table:
    """A line for each kind of fault: its rounds by executor, and how many ended as an undisturbed sweep does."""
    rounds = [(match, case.outcome) for case in cases if (match := ROUND.fullmatch(case.name))]
    executors = list(dict.fromkeys(match["executor"] for match, _ in rounds))
    rows = []
    for kind in [*dict.fromkeys(match["kind"] for match, _ in rounds), "all"]:
        these = [(match, outcome) for match, outcome in rounds if kind in (match["kind"], "all")]
        by = Counter(match["executor"] for match, _ in these)
        right = sum(outcome == "right" for _, outcome in these)
        rows.append((kind, *(str(by[executor]) for executor in executors), str(len(these)), str(right)))
    return Table(("fault", *executors, "rounds", "as undisturbed"), rows)


def counted(outcomes: Counter[str]) -> tuple[str, ...]:
    return (str(outcomes.total()), *(str(outcomes[outcome]) for outcome in ("right", "wrong", "skipped")))


def soaked(prunes: int) -> dict[str, Any] | None:
    """What the soak says of so many prunes in one process; none where there is no soak."""
    if not SOAK.is_file():
        return None
    command = [sys.executable, str(SOAK), "--prunes", str(prunes), "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def table_of_soak(figures: Mapping[str, Any]) -> Table:
    """NAME_start, NAME_warm, NAME_end in one line for each name; what stands alone in its own."""
    moments = ("start", "warm", "end")
    names = dict.fromkeys(name.rpartition("_")[0] if name.rpartition("_")[2] in moments else name for name in figures)
    rows = []
    for name in names:
        known = {moment: figures[f"{name}_{moment}"] for moment in moments if f"{name}_{moment}" in figures}
        cells = known or {"end": figures[name]}
        rows.append((name.replace("_", " "), *(written(cells.get(moment, "")) for moment in moments)))
    return Table(("", *moments), rows)


def written(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def page(cases: Sequence[Case], soak: Mapping[str, Any] | None, command: str) -> str:
    about = provenance()
    outcomes = Counter(case.outcome for case in cases)
    words = ", ".join(
        f"{outcomes[outcome]} {outcome}" for outcome in ("right", "wrong", "skipped") if outcomes[outcome]
    )
    text = [
        "# Reliability",
        "",
        INTRODUCTION,
        "",
        f"{len(cases)} cases: {words}. Written by `{command}`, {datetime.now(timezone.utc):%Y-%m-%d}; commit "
        f"{about['commit']}, Python {about['python']}, torch {about['torch']}, {about['hardware']}.",
        *("", "## Hostile cases", "", to_markdown(table_of_cases(cases))),
    ]
    if any(ROUND.fullmatch(case.name) for case in cases):
        text += ["## Faults in a sweep", "", to_markdown(table_of_rounds(cases))]
    if soak is not None:
        text += ["## The soak", "", "Prunes of mixed kinds, one after the other in one process.", ""]
        text.append(to_markdown(table_of_soak(soak)))
    return "\n".join(text).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without what is slow")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--prunes", type=int, default=None, help="of the soak")
    asked = parser.parse_args()
    provenance()  # of the code that runs, whatever is changed meanwhile
    cases = ran(asked.quick)
    soak = soaked(asked.prunes or (20 if asked.quick else PRUNES))
    text = page(cases, soak, " ".join(["python benchmarks/reliability.py", *sys.argv[1:]]))
    print(text)
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")
    if not cases or any(case.outcome == "wrong" for case in cases):
        sys.exit("some cases are wrong" if cases else "no case ran")


if __name__ == "__main__":
    main()
