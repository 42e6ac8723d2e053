"""The tables of docs/peers.md that compare: masks, scores, seconds, and what they say in short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import records

from repairability.tables import Table

OURS = "repairability"
NAMES = {
    "resnet20": ("ResNet20 / CIFAR-10", "top-1, %"),
    "resnet18": ("ResNet18 / CIFAR-100", "top-1, %"),
    "gpt": ("The small language model of docs/transformer.md", "test perplexity per character; less is better"),
}

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


def masks() -> Table:
    every = [x for x in works(records.MASKS[0], "masks") if "failed" in x[1] or records.quiet(x[1])]
    found = sorted(every, key=lambda x: x[1].get("seconds", float("inf")))
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

    parts = {"Commit": "commit", "date": "date", "hardware": "hardware", "seed": "seed"}
    said = [f"{title}: {all_of(field)}" for title, field in parts.items() if all_of(field)]
    loads = [x["load"] for x in found if "load" in x]
    if loads:
        said.append(f"load of the machine before the work: {min(loads):g} to {max(loads):g}")
    about = all_of("about")
    return "; ".join([*([about] if about else []), *said]) + "." if found else ""


def entries_of(network: str) -> list[tuple[str, str]]:
    """(peer, entry) to be scored: what was scored on one of the networks for images is wanted on the other, too."""
    networks = [x for x in NAMES if (x == "gpt") == (network == "gpt")]
    order = list(records.PEERS)
    found = {(name, work["entry"]) for x in networks for name, work in works(x, "accuracy")}
    return sorted(found, key=lambda x: (order.index(x[0]), x[1]))


def scored(network: str) -> dict[tuple[str, str, float], Work]:
    """Each piece of work by (peer, entry, sparsity); a failure at one sparsity stands for the others, too."""
    known = {(name, x["entry"], x["sparsity"]): x for name, x in works(network, "accuracy")}
    failed = {(name, entry): x for (name, entry, _), x in known.items() if "failed" in x}
    for s in records.SPARSITIES[network]:
        for name, entry in failed:
            known.setdefault((name, entry, s), failed[name, entry])
    return known


def complete(network: str, sparsity: float) -> bool:
    """Whether every entry was scored there, or failed."""
    known = scored(network)
    return all((*x, sparsity) in known for x in entries_of(network))


def scores(network: str) -> Table:
    """A line for each entry: the score at each sparsity, with the one that was reached where it is another."""
    known, sparsities = scored(network), records.SPARSITIES[network]
    better = min if network == "gpt" else max
    best = {
        s: better((x["score"] for (_, _, at), x in known.items() if at == s and "score" in x), default=None)
        for s in sparsities
        if complete(network, s)
    }
    rows = [
        (label(name, entry), *(shown(known.get((name, entry, s)), best.get(s)) for s in sparsities))
        for name, entry in entries_of(network)
    ]
    columns = ("entry", *(f"{100 * s:g} %" for s in sparsities))
    title, unit = NAMES[network]
    return Table(columns, rows, f"{title}: {unit}", circumstances([x for _, x in works(network, "accuracy")]))


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
    right = {key: x for key, x in scored(network).items() if "score" in x}
    timed = {(n, x["entry"], x["sparsity"]): x for n, x in works(network, "seconds") if "seconds" in x}
    used = {key: timed.get(key) or x for key, x in right.items()}
    figures = {key: (right[key]["score"], x["seconds"]) for key, x in used.items() if records.quiet(x)}
    sparsities = records.SPARSITIES[network]
    rows = []
    for name, entry in dict.fromkeys((n, e) for n, e, _ in right):
        cells = []
        for s in sparsities:
            mine = figures.get((name, entry, s))
            cells.append("-" if mine is None else f"{seconds_text(mine[1])}{beaten(mine, figures, s, network)}")
        memory = max(x["grown_mb"] for (n, e, _), x in right.items() if (n, e) == (name, entry))
        rows.append((label(name, entry), *cells, f"{memory:,.0f}"))
    columns = ("entry", *(f"{100 * s:g} %" for s in sparsities), "MB")
    caption = (
        "Seconds of a pruning with its recovery, without imports and evaluation, on a machine that does nothing else "
        "(a dash: not yet); * where no entry with a time is at once better and faster. MB: by how much the process "
        f"grew at its peak, at most. {circumstances([used[key] for key in figures])}"
    )
    return Table(columns, rows, f"{NAMES[network][0]}: seconds", caption.strip())


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.0f}"


def beaten(mine: tuple[float, float], figures: dict[Any, tuple[float, float]], s: float, network: str) -> str:
    sign = -1 if network == "gpt" else 1
    others = [x for (_, _, at), x in figures.items() if at == s and x is not mine]
    dominated = any(sign * x[0] >= sign * mine[0] and x[1] <= mine[1] and x != mine for x in others)
    return "" if dominated else "*"


def verdicts() -> list[str]:
    """What the records say of us and of the best of the others, one line for each comparison."""
    lines = []
    every = [(name, x) for name, x in works(records.MASKS[0], "masks") if "seconds" in x and records.quiet(x)]
    timed = [(x["seconds"], name, x["entry"]) for name, x in every]
    ours, others = [x for x in timed if x[1] == OURS], [x for x in timed if x[1] != OURS]
    if ours and others:
        (first, _, rule), (last, _, slow), (their, *whose) = min(ours), max(ours), min(others)
        lines.append(
            f"- Allocation and masks: {1e3 * first:.0f} ms ({rule}), the slowest of our rules {1e3 * last:.0f} ms "
            f"({slow}); the fastest of the others {1e3 * their:.0f} ms ({label(*whose)})."
        )
    for network, (title, _) in NAMES.items():
        sign = -1 if network == "gpt" else 1
        found = [(name, x) for name, x in works(network, "accuracy") if "score" in x]
        cells = []
        for s in records.SPARSITIES[network]:
            mine = max((sign * x["score"] for name, x in found if name == OURS and x["sparsity"] == s), default=None)
            theirs = max(
                (
                    (sign * x["score"], label(name, x["entry"]))
                    for name, x in found
                    if name != OURS and x["sparsity"] == s
                ),
                default=None,
            )
            if mine is not None and theirs is not None:
                open_ = "" if complete(network, s) else ", others not measured yet"
                cells.append(f"{100 * s:g} %: {sign * mine:.2f} beside {sign * theirs[0]:.2f} ({theirs[1]}{open_})")
        if cells:
            lines.append(f"- {title}, our best entry beside the best of the others: {'; '.join(cells)}.")
    return lines
