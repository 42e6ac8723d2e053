"""Records -> groups that one report can show: one network on one data set in one setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repairability.experiments.record import Record
from repairability.experiments.spec import RunSpec
from repairability.report.data import ReportData
from repairability.report.estimates import Estimate, gaps, repairs

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
"""Our names, without dashes, and those in print."""

AXES = {"rule", "options", "repair", "sparsity", "seed"}
"""What varies within a group."""

Key = tuple[Any, ...]
Cells = dict[Key, dict[str, Estimate]]
"""Row labels -> column -> what stands there. A label that is a float is a sparsity."""


def model_name(model: str) -> str:
    """The name of a network in print, where it has one."""
    return MODELS.get(_plain(model), model)


def data_name(data: str) -> str:
    """The name of a data set in print: 'cifar100' and 'npz:some/CIFAR-100.npz' are CIFAR100; others as given."""
    return DATA.get(_plain(Path(data.rpartition(":")[2]).stem), data)


def place_of(spec: RunSpec) -> str:
    """A network on its data."""
    return f"{model_name(spec.model)} on {data_name(spec.data)}"


def _plain(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())


def file_name(text: str) -> str:
    """Letters, digits and underscores only."""
    return "_".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


@dataclass(frozen=True)
class Group:
    """The done runs of one setting, and the report of them."""

    records: tuple[Record, ...]
    report: ReportData

    @property
    def place(self) -> str:
        """What distinguishes the group in a table."""
        return self.report.title


def done(records: Sequence[Record], task: str = "prune") -> list[Record]:
    """The runs that succeeded; of two of one spec, the last."""
    good = [record for record in records if record.status == "done" and record.spec.task == task]
    return list({record.spec.model_dump_json(): record for record in good}.values())


def groups(records: Sequence[Record], model: str | None = None) -> list[Group]:
    """One group per setting, in the order of the records. `place` is the data set, with the network where it is not
    `model` (the one a table is about), and whatever else tells settings apart.
    """
    alike: dict[str, list[Record]] = {}
    for record in done(records):
        alike.setdefault(record.spec.model_dump_json(exclude=AXES), []).append(record)
    settings = [(runs[0].spec.model_dump(mode="json", exclude=AXES), runs) for runs in alike.values()]
    made = []
    for mine, runs in settings:
        spec = runs[0].spec
        place = data_name(spec.data) if model_name(spec.model) == model else place_of(spec)
        near = [other for other, _ in settings if (other["model"], other["data"]) == (mine["model"], mine["data"])]
        differ = [name for name in mine if any(other[name] != mine[name] for other in near)]
        apart = [f"{name} {_told(mine[name], [other[name] for other in near])}" for name in differ]
        made.append(Group(tuple(runs), report_of(", ".join([place, *apart]), runs, map(report_row, runs))))
    return made


def _told(value: object, others: Sequence[object]) -> str:
    """A long list by its ends, where no other of the values has these."""
    told = {str(other): ends(other) for other in others}
    return ends(value) if len(set(told.values())) == len(told) else str(value)


def ends(value: object) -> str:
    """A list by its first and last value, anything else as it is."""
    return f"{value[0]:g} to {value[-1]:g}" if isinstance(value, list) and len(value) > 2 else str(value)


def report_of(title: str, runs: Sequence[Record], rows: Iterable[Mapping[str, Any]]) -> ReportData:
    """Runs of one network on one data set as a report, with these rows for results."""
    spec, result = runs[0].spec, runs[0].result
    dense = {"top1": result.get("dense_top1"), "top1_bn": result.get("dense_bn_top1"), "n": result["n"]}
    return ReportData(
        title=title,
        model=model_name(spec.model),
        data=data_name(spec.data),
        dense=None if dense["top1"] is None else dense,
        projections=result.get("projections") or (),
        results=list(rows),
    )


def report_row(record: Record) -> dict[str, Any]:
    """A run as a report's result."""
    spec, agreement = record.spec, record.result.get("agreement") or {}
    return {
        "rule": rule_name(spec),
        "repair": spec.repair,
        "sparsity": spec.sparsity,
        "seed": spec.seed,
        **{name: record.result[name] for name in ("achieved", "global_sparsity", "top1", "n")},
        "agreement": agreement.get("same"),
        "kl": agreement.get("kl"),
    }


def rule_name(spec: RunSpec) -> str:
    """A rule, with its options where it has some."""
    return f"{spec.rule} ({options_text(spec.options)})" if spec.options else spec.rule


def options_text(options: Mapping[str, object]) -> str:
    """'solver=exact, floor=0.0'."""
    return ", ".join(f"{name}={value}" for name, value in options.items())


def gap_cells(some: Sequence[Group], pairs: Mapping[str, tuple[str, str]]) -> Cells:
    """(place, sparsity) -> name of the pair -> its paired gap."""
    table: Cells = {}
    for group in some:
        several = len(repairs(group.report)) > 1
        for name, (rule, against) in pairs.items():
            for (repair, s), gap in gaps(group.report, rule, against).items():
                table.setdefault((group.place, s), {})[f"{name}, {repair}" if several else name] = gap
    return table
