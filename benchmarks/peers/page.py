"""docs/peers.md from the records in results/ and from features.toml.

    python benchmarks/peers/page.py [--write | --check | --evidence CACHE]

--write renews the page, --check says whether it is what the records print, --evidence looks up every cell of the
feature table in the files of the environments in CACHE. Without any, the page is printed.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

import records
from features import missing_evidence, table_of_features
from figures import NAMES, circumstances, complete, costs, label, masks, scores, verdicts, works

from repairability._files import write_atomically
from repairability.report.markup import to_markdown
from repairability.tables import Table

PAGE = records.HERE.parents[1] / "docs" / "peers.md"
INTRODUCTION = """\
Each peer in an environment of its own, from exact pins (`benchmarks/peers/pins`), with the same trained network, the
same unlabeled images and the same test set; one-shot, with the recovery that the peer has, without labels or training.
`python benchmarks/peers/run.py SHARED DATA` measures and keeps a record of each piece of work
(`benchmarks/peers/results`), `python benchmarks/peers/page.py --write` prints this page from them. What a peer's user
would write stands there in `with_NAME.py`. Sparsity is over the prunable layers (every convolution but the
stem, without the classifier; the linear layers of the language model's blocks); the same list is given to every peer
that takes one."""


def lines_of(name: str) -> dict[str, int]:
    """Lines of code of each entry's pruning function, as its script has it: no blanks, no docstring, no `def`."""
    source = records.script_of(name).read_text(encoding="utf-8")
    functions = {x.name: x for x in ast.parse(source).body if isinstance(x, ast.FunctionDef)}
    counts = {}
    for entry, call in calls_of(name).items():
        body = functions[ast.unparse(call.args[0])].body
        rows = {row for x in body for row in range(x.lineno, (x.end_lineno or x.lineno) + 1)}
        counts[entry] = len([row for row in rows if source.splitlines()[row - 1].strip()])
    return counts


def calls_of(name: str) -> dict[str, ast.Call]:
    """The entries of a peer's script as they stand there; nothing of it is run."""
    tree = ast.parse(records.script_of(name).read_text(encoding="utf-8"))
    table = next(x.value for x in tree.body if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "ENTRIES")
    if not isinstance(table, ast.Dict):
        raise TypeError(f"ENTRIES of {name} is no dict literal")
    pairs = zip(table.keys, table.values, strict=True)
    return {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant) and isinstance(v, ast.Call)}


def without_masks() -> list[str]:
    """Which entries have not been timed at allocation and masks, or fail there, or have nothing to time."""
    network = records.MASKS[0]
    timed = {(name, x["entry"]) for name, x in works(network, "masks") if records.final(x)}
    failed = {(name, x["entry"]) for name, x in works(network, "accuracy") if "failed" in x} - timed
    tables = {name: calls_of(name) for name in records.PEERS}
    able = {name: [x for x, call in calls.items() if has_masks(call)] for name, calls in tables.items()}
    missing = [label(name, x) for name, found in able.items() for x in found if (name, x) not in timed | failed]
    broken = [label(name, x) for name, found in able.items() for x in found if (name, x) in failed]
    none = [records.PEERS[name].label for name, found in able.items() if not found]
    lines = [f"Not timed yet: {'; '.join(missing)}."] if missing else []
    if broken:
        lines.append(f"What fails at this network, as below: {'; '.join(broken)}.")
    if none:
        lines.append(f"No masks apart from the pruning, so nothing to time: {', '.join(none)}.")
    return lines


def has_masks(call: ast.Call) -> bool:
    """An entry's second argument makes them: None where there are none."""
    return len(call.args) > 1 and not (isinstance(call.args[1], ast.Constant) and call.args[1].value is None)


def failures() -> list[str]:
    """Each failure once, with what it was at."""
    said: dict[tuple[str, str], list[str]] = {}
    for name, known in records.every():
        if known["install"] and "failed" in known["install"]:
            said[f"{records.PEERS[name].label}: install", known["install"]["failed"]] = []
        for work in known["work"]:
            if "failed" in work:
                key = (label(name, work["entry"]), work["failed"])
                said.setdefault(key, []).append(f"{work['network']} at {100 * work['sparsity']:g} %")
    lines = []
    for (who, why), where in said.items():
        lines.append(f"- **{who}**{' (' + ', '.join(where) + ')' if where else ''}: `{' '.join(why.split())}`")
    return lines


def usage() -> list[str]:
    """How each peer was used: what its script says of itself."""
    sources = {name: records.script_of(name).read_text(encoding="utf-8") for name in records.PEERS}
    return [f"- {' '.join((ast.get_docstring(ast.parse(x)) or name).split())}" for name, x in sources.items()]


def adoption() -> Table:
    rows = []
    for name, known in records.every():
        install = known["install"] or {}
        used = {x["entry"] for x in known["work"] if x["what"] == "accuracy"}
        counts = [count for entry, count in lines_of(name).items() if entry in used] or list(lines_of(name).values())
        code = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        if "failed" in install or not install:
            rows.append((records.PEERS[name].label, code, "failed" if install else "-", "", "", ""))
            continue
        more = max(0.0, install["import_seconds"] - install["torch_import_seconds"])  # below 0 is timing noise
        times = (f"{install['seconds']:.0f}", f"{more:.1f}") if records.quiet(install) else ("-", "-")
        numbers = (f"{len(install['packages'])}", f"{install['mb']:,.0f}", *times)
        rows.append((records.PEERS[name].label, code, *numbers))
    installs = [known["install"] for _, known in records.every() if known["install"]]
    torch = next((x for x in installs if "torch_mb" in x), None)
    beside = ""
    if torch is not None:
        beside = f" torch itself: {torch['torch_packages']} packages, {torch['torch_mb']:,.0f} MB"
        if records.quiet(torch):
            beside += f", {torch['torch_seconds']:.0f} s, import {torch['torch_import_seconds']:.1f} s"
        beside += "."
    caption = (
        "Lines: of the function that prunes, imports included, as its script has it. The rest is what comes on top of "
        f"torch: packages, MB of files, seconds of pip without its cache, seconds of the import "
        f"(a dash: not yet measured on an idle machine).{beside} "
        f"{circumstances(installs)}"
    )
    return Table(("peer", "lines", "packages", "MB", "install, s", "import, s"), rows, caption=caption)


def legend() -> str:
    """What a dash is, where there is one."""
    if all(complete(x, s) for x in NAMES for s in records.SPARSITIES[x] if works(x, "accuracy")):
        return "One draw of images. What failed stands below."
    return "A dash: not measured yet; the best is named where every entry was. One draw of images."


def page() -> str:
    table, evidence = table_of_features()
    text = ["# Peers, measured", "", INTRODUCTION, "", *verdicts(), ""]
    text += ["## Allocation and masks", ""]
    text += ["ResNet18 at 95 %, from the network to its masks; medians on a machine that does nothing else.", ""]
    text.append(to_markdown(masks()) if masks().rows else "Not measured yet.\n")
    text += [line for x in without_masks() for line in (x, "")]
    text += [
        "## Accuracy without labels",
        "",
        legend(),
        "",
    ]
    text += [to_markdown(scores(x)) for x in NAMES if works(x, "accuracy")]
    text += ["## What it takes", ""]
    text += [to_markdown(costs(x)) for x in NAMES if any("score" in work for _, work in works(x, "accuracy"))]
    text += ["## How each was used", "", *usage(), ""]
    text += ["## What failed", "", *(failures() or ["Nothing."]), ""]
    text += ["## What it costs to adopt", "", to_markdown(adoption())]
    text += ["## What there is", "", to_markdown(table), *evidence]
    return "\n".join(text).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    way.add_argument("--check", action="store_true", help=f"fail where docs/{PAGE.name} is not what would be printed")
    way.add_argument("--evidence", type=Path, metavar="CACHE", help="look up the feature table in these environments")
    given = parser.parse_args()
    if given.evidence is not None:
        wrong = missing_evidence(given.evidence)
        sys.exit("\n".join(wrong) if wrong else 0)
    text = page()
    if given.check:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        sys.exit(0 if same else f"docs/{PAGE.name} is out of date: python benchmarks/peers/page.py --write")
    if given.write:
        write_atomically(PAGE, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
