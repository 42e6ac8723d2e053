"""Sections about where the sparsity goes: layer by layer, correlations, achieved sparsities, ERK's cap, projections."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from repairability.allocation import Allocation
from repairability.errors import RepairabilityError
from repairability.experiments.spec import RunSpec
from repairability.experiments.store import Record
from repairability.models import create_model
from repairability.network.layers import prunable_layers
from repairability.report import charts
from repairability.report.data import ReportData
from repairability.report.estimates import Estimate, estimate
from repairability.report.tables import short_percent
from repairability.rules.erk import erk_raw, erk_scale
from reproduction.paper import Number, by_rule, number, paper_table, share
from reproduction.sections.accuracies import HEAD, file_name
from reproduction.sections.groups import Group, allocation, cells, groups, layer_estimates
from reproduction.sections.section import Draw, Key, Ours, Paper, Section, compare

if TYPE_CHECKING:
    from altair import LayerChart

PLACE = ("CIFAR100", 0.95)
"""What the paper's layerwise tables are of."""


def layerwise(records: Sequence[Record]) -> Section:
    """RR against ERK, layer by layer."""
    printed: Paper = {}
    for row in paper_table("layerwise_delta"):
        levels = {"rr": row["RR sparsity"], "erk": row["ERK sparsity"], "rr - erk": row["RR - ERK"]}
        printed[(row["Layer"],)] = {name: Number(float(text)) for name, text in levels.items()}
    drawn: dict[str, Draw] = {}
    tables, matched = [], False
    for group, s in _both(groups(records, "ResNet18")):
        ours = _levels(group, s)
        here = (group.place, s) == PLACE
        matched = matched or here
        title = f"Sparsity of each layer, {group.place} at {short_percent(s)}: RR against ERK"
        rows: Ours = {(layer,): row for layer, row in ours.items()}
        table = compare(title, ("layer",), rows, printed if here else {}, scale=1, digits=3, accuracy=False)
        tables.append(table)
        drawn[file_name(f"layerwise {group.place} {100 * s:g}")] = partial(_deviation, group, s, ours)
    if not matched:
        title = f"Sparsity of each layer, {PLACE[0]} at {short_percent(PLACE[1])}: the paper's"
        tables.append(compare(title, ("layer",), {}, printed, scale=1, digits=3, accuracy=False))
    return Section(tables, drawn)


def allocation_correlation(records: Sequence[Record]) -> Section:
    """How alike the allocations of RR and ERK are."""
    ours: Ours = {}
    for group, s in _both(groups(records, "ResNet18")):
        erk = {record.spec.seed: record for record in group.at(s, "erk")}
        pairs = [(record, erk[record.spec.seed]) for record in group.at(s, "rr") if record.spec.seed in erk]
        found = [_correlations(rr.result["allocation"], other.result["allocation"]) for rr, other in pairs]
        known = [each for each in found if each is not None]
        results = [record.result for record, _ in pairs]
        if known:
            ours[group.place, short_percent(s)] = {
                name: estimate([each[i] for each in known], results, "correlation")
                for i, name in enumerate(("Pearson", "Spearman"))
            }
    rows = paper_table("layerwise_delta")
    theirs = _correlations(
        {row["Layer"]: float(row["RR sparsity"]) for row in rows},
        {row["Layer"]: float(row["ERK sparsity"]) for row in rows},
    )
    paper: Paper = {}
    if theirs is not None:
        paper[PLACE[0], short_percent(PLACE[1])] = {"Pearson": Number(theirs[0]), "Spearman": Number(theirs[1])}
    note = (
        "Over layers, each counting once. The paper says only that the two are 'highly correlated'; its numbers here "
        "are computed from its layerwise table."
    )
    title = "Correlation between RR's and ERK's sparsities"
    return Section([compare(title, HEAD, ours, paper, note=note, scale=1, digits=3, accuracy=False)])


def achieved_sparsity(records: Sequence[Record]) -> Section:
    """Global sparsities that the rules reach."""
    paper: Paper = {}
    for row in paper_table("actual_sparsity"):
        data, sparsity = row["Setting"].split()
        paper[data, short_percent(share(sparsity))] = by_rule(row)
    found = groups(records, "ResNet18")
    note = "Over all convolution weights, the dense stem included, as the paper counts."
    title = "Achieved global sparsity on ResNet18, %"
    ours = cells(found, "global_sparsity")
    tables = [compare(title, HEAD, ours, paper, note=note, stacked=True, accuracy=False)]
    note = "Over the prunable weights, which is what a target means; the paper does not print these."
    ours = cells(found, "achieved")
    tables.append(
        compare("Achieved sparsity of the prunable weights, %", HEAD, ours, {}, note=note, stacked=True, accuracy=False)
    )
    return Section(tables)


def erk_cap(records: Sequence[Record]) -> Section:
    """Layers whose ERK density would exceed one, and the projections."""
    ours: Ours = {}
    for group, s in _both(groups(records, "ResNet18")):
        densities = uncapped(group.at(s, "erk")[0].spec)
        levels = _levels(group, s)
        shown = [x for x in levels if x in group.report.projections or densities.get(x, 0.0) > 1]
        for layer in shown:
            row = {f"{rule} sparsity": levels[layer][rule] for rule in ("erk", "rr") if rule in levels[layer]}
            if layer in densities:
                runs = [record.result for record in group.at(s, "erk")]
                row = {"uncapped density": estimate([densities[layer]] * len(runs), runs, "density"), **row}
            ours[group.place, short_percent(s), layer] = row
    paper: Paper = {}
    for line in paper_table("erk_cap"):
        columns = {"uncapped density": "Uncapped density", "erk sparsity": "ERK sparsity", "rr sparsity": "RR sparsity"}
        paper[PLACE[0], short_percent(PLACE[1]), line["Layer"]] = {
            x: Number(float(line[y])) for x, y in columns.items()
        }
    title = "ERK's cap: projections, and layers whose uncapped density exceeds one"
    note = "The uncapped density is of the shapes alone."
    head = (*HEAD, "layer")
    return Section([compare(title, head, ours, paper, note=note, scale=1, digits=3, stacked=True, accuracy=False)])


def projection_forced(records: Sequence[Record]) -> Section:
    """Projections pinned to a sparsity, the rest by ERK."""
    ours: Ours = {}
    for group in groups([record for record in records if record.spec.options.get("pinned")], "ResNet18"):
        runs: dict[Key, dict[str, list[Record]]] = {}
        for record in group.records:
            pinned = ", ".join(short_percent(float(s)) for s in record.spec.options["pinned"].values())
            key: Key = (group.place, short_percent(record.spec.sparsity), pinned)
            runs.setdefault(key, {}).setdefault(record.spec.repair, []).append(record)
        for key, by_repair in runs.items():
            every = list({record.spec.seed: record for each in by_repair.values() for record in each}.values())
            regular = estimate([_regular(record) for record in every], [r.result for r in every], "sparsity")
            top1 = {
                repair: estimate([r.result["top1"] for r in each], [r.result for r in each], "top1")
                for repair, each in by_repair.items()
            }
            ours[key] = {"regular convolutions": regular, **top1}
    paper: Paper = {}
    for row in paper_table("projection_forced"):
        known = {"regular convolutions": row["Reg. conv sp."], "bn": row["BN"], "cr+bn": row["CR+BN"]}
        place = (PLACE[0], short_percent(PLACE[1]), short_percent(share(row["Proj. sp."])))
        paper[place] = {name: found for name, text in known.items() if (found := number(text)) is not None}
    title = "Projection-forced ERK on ResNet18: top-1 accuracy by repair, %"
    note = "Projections pinned, the rest by ERK; 'regular convolutions' is their sparsity, %."
    return Section([compare(title, (*HEAD, "projections"), ours, paper, note=note, stacked=True)])


def _regular(record: Record) -> float:
    """The sparsity of the layers that are not pinned."""
    plan = allocation(record)
    free = [x for x in plan if not any(fnmatchcase(x, pattern) for pattern in record.spec.options["pinned"])]
    return sum(plan.pruned(x) for x in free) / max(1, sum(plan.totals[x] for x in free))


def uncapped(spec: RunSpec) -> dict[str, float]:
    """ERK's e * raw of each layer, from the shapes of a fresh network; nothing where none can be built."""
    bounds = {name: float(value) for name, value in spec.options.items() if name in ("cap", "floor")}
    try:
        layers = prunable_layers(create_model(spec.model, num_classes=spec.num_classes))
        raw = [erk_raw(layer.shape) for layer in layers]
        scale = erk_scale(raw, [layer.total for layer in layers], spec.sparsity, **bounds)
    except RepairabilityError:
        return {}
    return {name: scale * value for name, value in zip(layers.names, raw, strict=True)}


def _both(found: Sequence[Group]) -> Iterator[tuple[Group, float]]:
    """Each group at each sparsity where it has both rr and erk."""
    for group in found:
        for s in sorted({round(record.spec.sparsity, 6) for record in group.records}):
            if group.at(s, "rr") and group.at(s, "erk"):
                yield group, s


def _levels(group: Group, s: float) -> dict[str, dict[str, Estimate]]:
    """layer -> rr, erk and rr - erk over seeds."""
    rules = {rule: layer_estimates(group.at(s, rule)) for rule in ("rr", "erk")}
    erk = {record.spec.seed: record.result["allocation"] for record in group.at(s, "erk")}
    pairs = [record for record in group.at(s, "rr") if record.spec.seed in erk]
    found: dict[str, dict[str, Estimate]] = {}
    for layer in dict.fromkeys([*rules["rr"], *rules["erk"]]):
        found[layer] = {rule: levels[layer] for rule, levels in rules.items() if layer in levels}
        both = [r for r in pairs if layer in r.result["allocation"] and layer in erk[r.spec.seed]]
        gaps = [r.result["allocation"][layer] - erk[r.spec.seed][layer] for r in both]
        if gaps:
            found[layer]["rr - erk"] = estimate(gaps, [r.result for r in both], "sparsity")
    return found


def _deviation(group: Group, s: float, levels: dict[str, dict[str, Estimate]]) -> LayerChart | None:
    """The figure of mean deviations, with error bars over seeds."""
    totals = group.at(s, "rr")[0].result["totals"]
    n_all = group.at(s, "rr")[0].result["n_all"]
    shared = {x: row for x, row in levels.items() if x in totals and "rr - erk" in row}
    plans = [
        Allocation({x: row[rule].mean for x, row in shared.items()}, {x: totals[x] for x in shared}, n_all, rule, s)
        for rule in ("rr", "erk")
    ]
    data = ReportData(group.place, group.model, group.data, projections=group.report.projections, allocations=plans)
    spread = {x: row["rr - erk"].error or 0.0 for x, row in shared.items()}
    return charts.layerwise(data, s, spread if any(spread.values()) else None)


def _correlations(first: dict[str, float], second: dict[str, float]) -> tuple[float, float] | None:
    """Pearson and Spearman over the layers of both; None where one side is constant."""
    from scipy import stats  # here, because importing it costs half a second

    layers = [x for x in first if x in second]
    x, y = [first[layer] for layer in layers], [second[layer] for layer in layers]
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    found = float(stats.pearsonr(x, y).statistic), float(stats.spearmanr(x, y).statistic)
    return found if all(map(math.isfinite, found)) else None
