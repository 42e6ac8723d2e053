"""Records -> groups that one report can show: one network on one data set in one setting."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repairability.allocation import Allocation
from repairability.experiments.spec import RunSpec
from repairability.experiments.store import Record
from repairability.report.data import ReportData
from repairability.report.estimates import Estimate, estimate, estimates, gaps
from repairability.report.tables import short_percent
from reproduction.sections.section import Ours

MODELS = {"resnet18": "ResNet18", "resnet34": "ResNet34", "vgg16bn": "VGG16-BN"}
DATA = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "imagenette": "Imagenette",
    "imagewoof": "Imagewoof",
    "stl10": "STL10",
    "pets": "Oxford Pets",
    "oxfordpets": "Oxford Pets",
}
"""Our names, without dashes, and the paper's."""

AXES = ("rule", "options", "repair", "sparsity", "seed")
"""What varies within a group."""


def model_name(model: str) -> str:
    """The paper's name of a network, where it has one."""
    return MODELS.get(_plain(model), model)


def data_name(data: str) -> str:
    """The paper's name of a data set: 'cifar100' and 'npz:some/CIFAR-100.npz' are CIFAR100; others as given."""
    return DATA.get(_plain(Path(data.rpartition(":")[2]).stem), data)


def _plain(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())


@dataclass(frozen=True)
class Group:
    """The done runs of one setting; `place` is what distinguishes it in a table."""

    model: str
    data: str
    place: str
    records: tuple[Record, ...]
    report: ReportData

    def at(self, sparsity: float, rule: str) -> list[Record]:
        """The runs of one cell, over seeds."""
        return [r for r in self.records if r.spec.rule == rule and round(r.spec.sparsity, 6) == round(sparsity, 6)]


def done(records: Sequence[Record], task: str = "prune") -> list[Record]:
    """The runs that succeeded; of two of one spec, the last."""
    good = [record for record in records if record.status == "done" and record.spec.task == task]
    return list({json.dumps(record.spec.to_dict(), sort_keys=True): record for record in good}.values())


def of_the_papers_network(records: Sequence[Record]) -> bool:
    """Whether some of the runs are of ResNet18, so that the paper's numbers of it belong beside them."""
    return any(model_name(record.spec.model) == "ResNet18" for record in records)


def groups(records: Sequence[Record], model: str | None = None) -> list[Group]:
    """One group per setting, in the order of the records. `place` is the data set, with the network where it is not
    `model` (the paper's name of the one a table is about), and whatever else tells settings apart.
    """
    found: dict[str, list[Record]] = {}
    for record in done(records):
        found.setdefault(json.dumps(_setting(record.spec), sort_keys=True), []).append(record)
    specs = [runs[0].spec for runs in found.values()]
    return [_group(runs, model, _distinctions(runs[0].spec, specs)) for runs in found.values()]


def _setting(spec: RunSpec) -> dict[str, Any]:
    return {name: value for name, value in spec.to_dict().items() if name not in AXES}


def _distinctions(spec: RunSpec, others: Sequence[RunSpec]) -> str:
    """The settings in which a spec differs from others of the same network and data."""
    mine = _setting(spec)
    near = [_setting(other) for other in others if (other.model, other.data) == (spec.model, spec.data)]
    differ = [name for name in mine if any(other[name] != mine[name] for other in near)]
    return ", ".join(f"{name} {_told(mine[name], [other[name] for other in near])}" for name in differ)


def _told(value: object, others: Sequence[object]) -> str:
    """A long list by its ends, where no other of the values has these."""
    told = {str(each): ends(each) for each in others}
    return ends(value) if len(set(told.values())) == len(told) else str(value)


def ends(value: object) -> str:
    """A list by its first and last value, anything else as it is."""
    return f"{value[0]:g} to {value[-1]:g}" if isinstance(value, list) and len(value) > 2 else str(value)


def _group(runs: Sequence[Record], model: str | None, distinctions: str) -> Group:
    spec = runs[0].spec
    network, data = model_name(spec.model), data_name(spec.data)
    place = data if network == model else f"{network} on {data}"
    place = f"{place}, {distinctions}" if distinctions else place
    first = runs[0].result
    dense = {"top1": first["dense_top1"], "top1_bn": first.get("dense_bn_top1"), "n": first["n"]}
    report = ReportData(
        title=place,
        model=network,
        data=data,
        dense=dense if first.get("dense_top1") is not None else None,
        projections=first.get("projections") or (),
        results=[_row(record) for record in runs],
    )
    return Group(network, data, place, tuple(runs), report)


def _row(record: Record) -> dict[str, Any]:
    spec, result = record.spec, record.result
    agreement = result.get("agreement") or {}
    return {
        "rule": rule_name(spec),
        "repair": spec.repair,
        "sparsity": spec.sparsity,
        "seed": spec.seed,
        **{name: result[name] for name in ("achieved", "global_sparsity", "top1", "n")},
        "agreement": agreement.get("same"),
        "kl": agreement.get("kl"),
    }


def rule_name(spec: RunSpec) -> str:
    """A rule, with its options where it has some."""
    if not spec.options:
        return spec.rule
    return f"{spec.rule} ({', '.join(f'{name}={value}' for name, value in spec.options.items())})"


def allocation(record: Record) -> Allocation:
    """What a run pruned, layer by layer."""
    result = record.result
    return Allocation(
        result["allocation"], result["totals"], result["n_all"], rule_name(record.spec), record.spec.sparsity
    )


def layer_estimates(records: Sequence[Record]) -> dict[str, Estimate]:
    """The sparsity of each layer, over the seeds of one cell."""
    levels: dict[str, list[float]] = {}
    for record in records:
        for layer, s in record.result["allocation"].items():
            levels.setdefault(layer, []).append(float(s))
    results = [record.result for record in records]
    return {layer: estimate(values, results, "sparsity") for layer, values in levels.items()}


def cells(found: Sequence[Group], measure: str = "top1") -> Ours:
    """(place, sparsity) -> rule -> estimate."""
    table: Ours = {}
    for group in found:
        for method, points in estimates(group.report, measure).items():
            for s, each in points.items():
                table.setdefault((group.place, short_percent(s)), {})[method.label] = each
    return table


def gap_cells(found: Sequence[Group], pairs: Mapping[str, tuple[str, str]]) -> Ours:
    """(place, sparsity) -> name of the pair -> its paired gap."""
    table: Ours = {}
    for group in found:
        several = len({row["repair"] for row in group.report.results}) > 1
        for name, (rule, against) in pairs.items():
            for gap in gaps(group.report, rule, against):
                column = f"{name}, {gap.repair}" if several else name
                table.setdefault((group.place, short_percent(gap.sparsity)), {})[column] = gap.estimate
    return table
