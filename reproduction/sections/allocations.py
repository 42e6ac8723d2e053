"""Sections about where the sparsity goes: layer by layer, correlations, achieved sparsities, ERK's cap, projections."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from repairability.allocation import Allocation
from repairability.errors import RepairabilityError
from repairability.experiments.record import Record
from repairability.experiments.spec import PAPER_LAYERS, RunSpec
from repairability.models import create_model
from repairability.network.discover import prunable_layers
from repairability.report import charts
from repairability.report.data import ReportData
from repairability.report.sections.groups import Cells, Group, data_name, file_name, groups
from repairability.report.sections.section import Draw, Section
from repairability.report.tables import short_percent
from repairability.rules.erk import erk_raw, erk_scale
from reproduction.paper import Number, by_rule, numbers, paper_table, setting, share
from reproduction.sections.compare import HEAD, RESNET18, Paper, cells, compare, shown, tabulated, whose

PLACE = ("CIFAR100", 0.95)
"""What the paper's layerwise tables are of."""

BOTH = ("rr", "erk")


def layerwise(records: Sequence[Record]) -> Section:
    """RR against ERK, layer by layer."""
    columns = {"rr": "RR sparsity", "erk": "ERK sparsity", "rr - erk": "RR - ERK"}
    printed: Paper = {(row["Layer"],): numbers(row, columns) for row in paper_table("layerwise_delta")}
    runs = shown(records, BOTH, _at_the_place)
    ours = {(group.place, s): (group, _levels(group, s)) for group, s in _both(groups(runs, RESNET18))}
    layout = partial(compare, head=("layer",), scale=1, digits=3, accuracy=False)
    drawn: dict[str, Draw] = {}
    tables = []
    for (place, s), (group, levels) in ours.items():
        title = f"Sparsity of each layer, {place} at {short_percent(s)}: RR against ERK"
        tables.append(layout(title, ours=levels, paper=printed if (place, s) == PLACE else {}))
        drawn[file_name(f"layerwise {place} {100 * s:g}")] = partial(_deviation, group, s, levels)
    if PLACE not in ours:
        title = f"Sparsity of each layer, {PLACE[0]} at {short_percent(PLACE[1])}: the paper's"
        tables.append(layout(title, ours={}, paper=printed))
    return Section(tables, drawn, runs)


def allocation_correlation(records: Sequence[Record]) -> Section:
    """How alike the allocations of RR and ERK are."""
    runs = shown(records, BOTH)
    rows = [
        {"key": (group.place, s), "column": name, "r": r, "n": rr.result["n"]}
        for group, s in _both(groups(runs, RESNET18))
        for rr, erk in _pairs(group, s)
        for name, r in _correlations(rr.result["allocation"], erk.result["allocation"]).items()
    ]
    levels = {
        rule: {row["Layer"]: float(row[f"{rule.upper()} sparsity"]) for row in paper_table("layerwise_delta")}
        for rule in BOTH
    }
    theirs = _correlations(levels["rr"], levels["erk"])
    paper: Paper = {PLACE: {name: Number(value) for name, value in theirs.items()}}
    note = (
        "Over layers, each counting once. The paper says only that the two are 'highly correlated'; its numbers here "
        "are computed from its layerwise table."
    )
    title = "Correlation between RR's and ERK's sparsities"
    ours = tabulated(rows, "r")
    table = compare(title, HEAD, ours, paper, note=note, scale=1, digits=3, accuracy=False)
    return Section([table], records=runs)


def achieved_sparsity(records: Sequence[Record]) -> Section:
    """Global sparsities that the rules reach."""
    paper: Paper = {setting(row): by_rule(row) for row in paper_table("actual_sparsity")}
    rules = {rule for row in paper.values() for rule in row}
    points = {s for _, s in paper}
    runs = shown(records, rules, lambda spec: round(spec.sparsity, 6) in points)
    ours = groups(runs, RESNET18)
    layout = partial(compare, head=HEAD, stacked=True, accuracy=False)
    everywhere = layout(
        f"Achieved global sparsity{whose(runs)}, %",
        ours=cells(ours, "global_sparsity"),
        paper=paper,
        note="Over all convolution weights, the dense stem included, as the paper counts.",
    )
    prunable = layout(
        "Achieved sparsity of the prunable weights, %",
        ours=cells(ours, "achieved"),
        paper={},
        note="Over the prunable weights, which is what a target means; the paper does not print these.",
    )
    return Section([everywhere, prunable], records=runs)


def erk_cap(records: Sequence[Record]) -> Section:
    """Layers whose ERK density would exceed one, and the projections."""
    runs = shown(records, BOTH, _at_the_place)
    ours: Cells = {}
    for group, s in _both(groups(runs, RESNET18)):
        erk = _at(group, s, "erk")
        densities = uncapped(erk[0].spec)
        rows = [
            {"key": (layer,), "column": "uncapped density", "density": density, "n": record.result["n"]}
            for record in erk
            for layer, density in densities.items()
        ]
        uncapped_density = tabulated(rows, "density")
        for key, levels in _levels(group, s).items():
            if key[0] in group.report.projections or densities.get(key[0], 0.0) > 1:
                known = {f"{rule} sparsity": levels[rule] for rule in ("erk", "rr") if rule in levels}
                ours[(group.place, s, *key)] = {**uncapped_density.get(key, {}), **known}
    columns = {"uncapped density": "Uncapped density", "erk sparsity": "ERK sparsity", "rr sparsity": "RR sparsity"}
    paper: Paper = {(*PLACE, row["Layer"]): numbers(row, columns) for row in paper_table("erk_cap")}
    title = "ERK's cap: projections, and layers whose uncapped density exceeds one"
    note = "The uncapped density is of the shapes alone."
    head = (*HEAD, "layer")
    table = compare(title, head, ours, paper, note=note, scale=1, digits=3, stacked=True, accuracy=False)
    return Section([table], records=runs)


def projection_forced(records: Sequence[Record]) -> Section:
    """Projections pinned to a sparsity, the rest by ERK."""
    pinned = [record for record in records if record.spec.options.get("pinned")]
    rows = [_pinned(record, group.place) for group in groups(pinned, RESNET18) for record in group.records]
    by_seed = {(row["key"], row["seed"]): {**row, "column": "regular convolutions"} for row in rows}  # in every repair
    regular, top1 = tabulated(by_seed.values(), "regular"), tabulated(rows, "top1")
    ours: Cells = {key: {**regular[key], **top1[key]} for key in top1}
    columns = {"regular convolutions": "Reg. conv sp.", "bn": "BN", "cr+bn": "CR+BN"}
    paper: Paper = {
        (*PLACE, (share(row["Proj. sp."]),)): numbers(row, columns) for row in paper_table("projection_forced")
    }
    title = f"Projection-forced ERK{whose(pinned)}: top-1 accuracy by repair, %"
    note = "Projections pinned, the rest by ERK; 'regular convolutions' is their sparsity, %."
    return Section([compare(title, (*HEAD, "projections"), ours, paper, note=note, stacked=True)])


def _pinned(record: Record, place: str) -> dict[str, Any]:
    """A run with its cell, and the sparsity of its layers that are not pinned."""
    spec, result, pinned = record.spec, record.result, record.spec.options["pinned"]
    plan = Allocation(result["allocation"], result["totals"], result["n_all"])
    free = [layer for layer in plan if not any(fnmatchcase(layer, pattern) for pattern in pinned)]
    regular = sum(map(plan.pruned, free)) / max(1, sum(plan.totals[layer] for layer in free))
    key = (place, round(spec.sparsity, 6), tuple(float(s) for s in pinned.values()))
    own = {"seed": spec.seed, "top1": result["top1"], "regular": regular, "n": result["n"]}
    return {"key": key, "column": spec.repair, **own}


def uncapped(spec: RunSpec) -> dict[str, float]:
    """ERK's e * raw of each layer, from the shapes of a fresh network; nothing where none can be built."""
    bounds = {name: float(value) for name, value in spec.options.items() if name in ("cap", "floor")}
    try:
        layers = prunable_layers(create_model(spec.model, num_classes=spec.num_classes), **PAPER_LAYERS)
        raw = [erk_raw(layer.shape) for layer in layers]
        scale = erk_scale(raw, [layer.total for layer in layers], spec.sparsity, **bounds)
    except RepairabilityError:
        return {}
    return {name: scale * value for name, value in zip(layers.names, raw, strict=True)}


def _at_the_place(spec: RunSpec) -> bool:
    return (data_name(spec.data), round(spec.sparsity, 6)) == PLACE


def _at(group: Group, sparsity: float, rule: str) -> list[Record]:
    """The runs of one cell, over seeds."""
    return [run for run in group.records if run.spec.rule == rule and round(run.spec.sparsity, 6) == round(sparsity, 6)]


def _both(ours: Sequence[Group]) -> Iterator[tuple[Group, float]]:
    """Each group at each sparsity where it has both rr and erk."""
    for group in ours:
        for s in sorted({round(record.spec.sparsity, 6) for record in group.records}):
            if _at(group, s, "rr") and _at(group, s, "erk"):
                yield group, s


def _pairs(group: Group, s: float) -> list[tuple[Record, Record]]:
    """rr and erk of the same seeds."""
    erk = {record.spec.seed: record for record in _at(group, s, "erk")}
    return [(record, erk[record.spec.seed]) for record in _at(group, s, "rr") if record.spec.seed in erk]


def _levels(group: Group, s: float) -> Cells:
    """(layer,) -> rr, erk and rr - erk over seeds."""
    levels = [(rule, record, record.result["allocation"]) for rule in BOTH for record in _at(group, s, rule)]
    for rr, erk in _pairs(group, s):
        mine, theirs = rr.result["allocation"], erk.result["allocation"]
        levels.append(("rr - erk", rr, {layer: mine[layer] - theirs[layer] for layer in mine if layer in theirs}))
    rows = [
        {"key": (layer,), "column": name, "level": level, "n": record.result["n"]}
        for name, record, plan in levels
        for layer, level in plan.items()
    ]
    return tabulated(rows, "level")


def _deviation(group: Group, s: float, levels: Cells) -> Any:
    """The chart of mean deviations, with error bars over seeds."""
    result = _at(group, s, "rr")[0].result
    shared = {layer: row for (layer,), row in levels.items() if layer in result["totals"] and "rr - erk" in row}
    totals = {layer: result["totals"][layer] for layer in shared}
    plans = [
        Allocation({layer: row[rule].mean for layer, row in shared.items()}, totals, result["n_all"], rule, s)
        for rule in BOTH
    ]
    report = group.report
    data = ReportData(report.title, report.model, report.data, projections=report.projections, allocations=plans)
    spread = {layer: row["rr - erk"].error or 0.0 for layer, row in shared.items()}
    return charts.layerwise(data, s, spread if any(spread.values()) else None)


def _correlations(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Pearson and Spearman over the layers of both; nothing where one side is constant."""
    from scipy import stats  # here, because importing it costs half a second

    layers = [layer for layer in first if layer in second]
    x, y = [first[layer] for layer in layers], [second[layer] for layer in layers]
    if len(set(x)) < 2 or len(set(y)) < 2:
        return {}
    both = {"Pearson": float(stats.pearsonr(x, y).statistic), "Spearman": float(stats.spearmanr(x, y).statistic)}
    return both if all(map(math.isfinite, both.values())) else {}
