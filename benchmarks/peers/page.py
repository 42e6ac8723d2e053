"""docs/peers.md from the records in results/ and from features.toml.

    python benchmarks/peers/page.py [--write | --check | --evidence CACHE]

--write renews the page, --check says whether it is what the records print, --evidence looks up every cell of the
feature table in the files of the environments in CACHE. Without any, the page is printed.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import records
from features import missing_evidence, table_of_features

from repairability._files import write_atomically
from repairability.report.markup import to_markdown
from repairability.tables import Table

PAGE = records.HERE.parents[1] / "docs" / "peers.md"
OURS = "repairability"
NAMES = {
    "resnet20": ("ResNet20 / CIFAR-10", "top-1, %"),
    "resnet18": ("ResNet18 / CIFAR-100", "top-1, %"),
    "gpt": ("The small language model of docs/transformer.md", "test perplexity per character; less is better"),
}
INTRODUCTION = """\
Each peer in an environment of its own, from exact pins (`benchmarks/peers/pins`), with the same trained network, the
same unlabeled images and the same test set; one-shot, with the recovery that the peer has, without labels or training.
`python benchmarks/peers/run.py SHARED DATA` measures and keeps a record of each piece of work
(`benchmarks/peers/results`), `python benchmarks/peers/page.py --write` prints this page from them. What a peer's user
would write stands in `benchmarks/peers/with_NAME.py`. Sparsity is over the prunable layers (every convolution but the
stem, without the classifier; the linear layers of the language model's blocks); the same list is given to every peer
that takes one."""

Work = dict[str, Any]


def works(network: str, what: str) -> list[tuple[str, Work]]:
    """(peer, piece of work) of all peers."""
    return [
        (name, work)
        for name, known in records.every()
        for work in known["work"]
        if work["network"] == network and work["what"] == what
    ]


def label(name: str, entry: str) -> str:
    return f"{records.PEERS[name].label}: {entry}"


def lines_of(name: str) -> dict[str, int]:
    """Lines of code of each entry's pruning function, as its script has it: no blanks, no docstring, no `def`."""
    source = records.script_of(name).read_text(encoding="utf-8")
    tree = ast.parse(source)
    functions = {x.name: x for x in tree.body if isinstance(x, ast.FunctionDef)}
    table = next(x.value for x in tree.body if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "ENTRIES")
    if not isinstance(table, ast.Dict):
        raise TypeError(f"ENTRIES of {name} is no dict literal")
    counts = {}
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Call):
            body = functions[ast.unparse(value.args[0])].body
            rows = {row for x in body for row in range(x.lineno, (x.end_lineno or x.lineno) + 1)}
            counts[str(key.value)] = len([row for row in rows if source.splitlines()[row - 1].strip()])
    return counts


def masks() -> Table:
    found = sorted(works(records.MASKS[0], "masks"), key=lambda x: x[1].get("seconds", float("inf")))
    rows = []
    ours = min((x["seconds"] for name, x in found if name == OURS and "seconds" in x), default=None)
    for name, work in found:
        if "failed" in work:
            rows.append((label(name, work["entry"]), "failed", "", work["failed"]))
        else:
            times = [1e3 * x for x in work["times"]]
            spread = f"{min(times):.0f} to {max(times):.0f} of {len(times)}"
            ratio = "" if ours is None else f"{work['seconds'] / ours:.1f}"
            rows.append((label(name, work["entry"]), f"{1e3 * work['seconds']:.0f}", ratio, spread))
    columns = ("entry", "ms", "times ours", "range")
    return Table(columns, rows, caption=circumstances([x for _, x in found]))


def circumstances(found: Sequence[Work]) -> str:
    """What the figures of a table hang on, once."""

    def all_of(field: str) -> str:
        return ", ".join(sorted({str(x[field]) for x in found if field in x}))

    parts = {"Commit": "commit", "date": "date", "hardware": "hardware", "threads": "threads", "seed": "seed"}
    said = [f"{title}: {all_of(field)}" for title, field in parts.items() if all_of(field)]
    about = all_of("about")
    return "; ".join([*([about] if about else []), *said]) + "."


def scores(network: str) -> Table:
    """A line for each entry: the score at each sparsity, with the one that was reached where it is another."""
    found = works(network, "accuracy")
    sparsities = records.SPARSITIES[network]
    entries = list(dict.fromkeys((name, work["entry"]) for name, work in found))
    better = min if network == "gpt" else max
    known = {(name, x["entry"], x["sparsity"]): x for name, x in found}
    best = {
        s: better((x["score"] for (_, _, at), x in known.items() if at == s and "score" in x), default=None)
        for s in sparsities
    }
    rows = []
    for name, entry in entries:
        cells = [shown(known.get((name, entry, s)), best[s]) for s in sparsities]
        rows.append((label(name, entry), *cells))
    columns = ("entry", *(f"{100 * s:g} %" for s in sparsities))
    title, unit = NAMES[network]
    return Table(columns, rows, f"{title}: {unit}", circumstances([x for _, x in found]))


def shown(work: Work | None, best: float | None) -> str:
    if work is None:
        return "-"
    if "failed" in work:
        return "failed"
    text = f"{work['score']:.2f}"
    away = abs(work["reached"] - work["sparsity"]) > 5e-4
    marked = f"{text} (best)" if work["score"] == best else text
    return f"{marked} at {100 * work['reached']:.2f} %" if away else marked


def costs(network: str) -> Table:
    """Seconds and memory at each sparsity, and whether any entry is both better and faster."""
    scored = {(n, x["entry"], x["sparsity"]): x for n, x in works(network, "accuracy") if "score" in x}
    timed = {(n, x["entry"], x["sparsity"]): x for n, x in works(network, "seconds") if "seconds" in x}
    figures = {key: (x["score"], (timed.get(key) or x)["seconds"], x["grown_mb"]) for key, x in scored.items()}
    sparsities = records.SPARSITIES[network]
    rows = []
    for name, entry in dict.fromkeys((n, e) for n, e, _ in figures):
        cells = []
        for s in sparsities:
            mine = figures.get((name, entry, s))
            cells.append("-" if mine is None else f"{seconds_text(mine[1])}{beaten(mine, figures, s, network)}")
        memory = max(m for (n, e, _), (_, _, m) in figures.items() if (n, e) == (name, entry))
        rows.append((label(name, entry), *cells, f"{memory:,.0f}"))
    used = [timed.get(key) or x for key, x in scored.items()]
    beside = (
        "" if len(timed) >= len(scored) else " Seconds beside other jobs on the machine where no idle run is on record."
    )
    columns = ("entry", *(f"{100 * s:g} %" for s in sparsities), "MB")
    caption = (
        "Seconds of a pruning with its recovery, without imports and evaluation; * where no entry is at once better "
        f"and faster. MB: by how much the process grew at its peak, at most.{beside} {circumstances(used)}"
    )
    return Table(columns, rows, f"{NAMES[network][0]}: seconds", caption)


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.0f}"


def beaten(
    mine: tuple[float, float, float], figures: dict[Any, tuple[float, float, float]], s: float, network: str
) -> str:
    sign = -1 if network == "gpt" else 1
    others = [x for (_, _, at), x in figures.items() if at == s and x is not mine]
    dominated = any(sign * x[0] >= sign * mine[0] and x[1] <= mine[1] and x[:2] != mine[:2] for x in others)
    return "" if dominated else "*"


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
        more = install["import_seconds"] - install["torch_import_seconds"]
        numbers = (f"{len(install['packages'])}", f"{install['mb']:,.0f}", f"{install['seconds']:.0f}", f"{more:.1f}")
        rows.append((records.PEERS[name].label, code, *numbers))
    installs = [known["install"] for _, known in records.every() if known["install"]]
    torch = next((x for x in installs if "torch_mb" in x), None)
    beside = ""
    if torch is not None:
        beside = f" torch itself: {torch['torch_packages']} packages, {torch['torch_mb']:,.0f} MB."
    caption = (
        "Lines: of the function that prunes, imports included, as its script has it. The rest is what comes on top of "
        f"torch: packages, MB of files, seconds of pip without its cache, seconds of the import.{beside} "
        f"{circumstances(installs)}"
    )
    return Table(("peer", "lines", "packages", "MB", "install, s", "import, s"), rows, caption=caption)


def page() -> str:
    table, evidence = table_of_features()
    text = ["# Peers, measured", "", INTRODUCTION, ""]
    text += ["## Allocation and masks", "", "ResNet18 at 95 %, from the network to its masks; medians.", ""]
    text.append(to_markdown(masks()))
    text += ["## Accuracy without labels", ""]
    text += [to_markdown(scores(x)) for x in NAMES if works(x, "accuracy")]
    text += ["## What it takes", ""]
    text += [to_markdown(costs(x)) for x in NAMES if works(x, "accuracy")]
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
