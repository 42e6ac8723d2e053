"""The reproduction's two commands.

`python -m reproduction pages`: README.md and pages/ anew from results/; `--check` fails where one is old.
`python -m reproduction networks FOLDER`: every network that a study names, copied or trained; `--list` only names them.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from repairability.errors import RepairabilityError
from repairability.report.files import write_file
from reproduction.book import render, studies
from reproduction.networks import make, table


def main(arguments: list[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m reproduction")
    verbs = parser.add_subparsers(dest="verb", required=True)
    pages = verbs.add_parser("pages", help="make README.md and pages/ anew from results/")
    pages.add_argument("--check", action="store_true", help="write nothing; exit 1 and name what is out of date")
    networks = verbs.add_parser("networks", help="copy or train every network that a study names")
    networks.add_argument("folder", type=Path, help="where the networks go; what is there already stays")
    networks.add_argument("--given", type=Path, default=Path("../shared/data/checkpoints"), help="checkpoints")
    networks.add_argument("--data", type=Path, default=Path(".cache/data"), help="npz files")
    networks.add_argument("--only", action="append", default=[], metavar="FILE", help="some of them (repeatable)")
    networks.add_argument("--list", action="store_true", help="do nothing, and say what there is")
    given = parser.parse_args(arguments)
    try:
        if given.verb == "pages":
            return _pages(check=given.check)
        if given.list:
            print(table())
            return 0
        for line in make(given.folder, given.given, given.data, given.only):
            print(line, flush=True)
    except RepairabilityError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _pages(*, check: bool) -> int:
    outdated = [renewal for renewal in render(studies()) if renewal.outdated]
    for renewal in outdated:
        if not check:
            write_file(renewal.path, renewal.content)
        print(f"{'out of date' if check else 'renewed'}: {renewal.path.name}")
    return int(check and bool(outdated))


if __name__ == "__main__":
    sys.exit(main())
