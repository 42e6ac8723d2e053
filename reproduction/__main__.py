"""`python -m reproduction pages`: the pages anew from the records; `--check` writes nothing, fails where one is old."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from repairability.report.files import write_file
from reproduction.book import render, studies


def main(arguments: list[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m reproduction", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    pages = verbs.add_parser("pages", help="make README.md and pages/ anew from results/")
    pages.add_argument("--check", action="store_true", help="write nothing; exit 1 and name what is out of date")
    return _pages(check=parser.parse_args(arguments).check)


def _pages(*, check: bool) -> int:
    outdated = [renewal for renewal in render(studies()) if renewal.outdated]
    for renewal in outdated:
        if not check:
            write_file(renewal.path, renewal.content)
        print(f"{'out of date' if check else 'renewed'}: {renewal.path.name}")
    return int(check and bool(outdated))


if __name__ == "__main__":
    sys.exit(main())
