"""ReportData: everything one report shows, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import NotRequired, TypedDict

from repairability.allocation import Allocation, check_sparsity
from repairability.diagnostics import Diagnosis
from repairability.errors import MOST_COUNT, InputError, shortened
from repairability.report import tables
from repairability.tables import Table, Value

OPEN = with_config(ConfigDict(extra="allow"))
"""Keys that nobody knows are kept."""

Fraction = Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)]
Sparsity = Annotated[float, BeforeValidator(check_sparsity)]
Score = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Images = Annotated[int, Field(ge=1, le=MOST_COUNT, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Milliseconds = Annotated[list[Positive], Field(max_length=1000)]
Bounds = Annotated[list[Sparsity], Field(min_length=2, max_length=2)]


@OPEN
class Dense(TypedDict):
    """The network before pruning; accuracies are fractions."""

    top1: Fraction
    top1_bn: NotRequired[Fraction | None]  # its BatchNorm recalibrated
    n: Images


@OPEN
class Result(TypedDict):
    """One run; "agreement" and "kl" (against the dense network) are shown where present, other keys go to the CSV."""

    rule: str
    repair: str
    sparsity: Sparsity
    achieved: Sparsity
    global_sparsity: Sparsity
    seed: int
    top1: Fraction
    n: Images


@OPEN
class RecipeRun(TypedDict):
    """One run of a whole recipe, and the seconds it took."""

    recipe: str
    sparsity: Sparsity
    seed: int
    top1: Fraction
    n: Images
    seconds: Positive


@OPEN
class Shipped(TypedDict):
    """A pruned network: bytes of its files; milliseconds by torch and accelerated, of each measurement, if any."""

    recipe: str
    sparsity: Sparsity
    dense_bytes: Images
    sparse_bytes: Images
    parameters: Images
    threads: Images
    plain_ms: Milliseconds
    ms: Milliseconds


@OPEN
class TransitionScores(TypedDict):
    """What a search for the transition found: series over the sparsities, null where one has no value."""

    method: str
    sparsities: list[Sparsity]
    series: dict[str, list[Score | None]]
    core: Bounds | None
    broad: Bounds | None
    advice: str | None


def _aligned(scores: TransitionScores) -> Mapping[str, Any]:
    count = len(scores["sparsities"])
    for name, values in scores["series"].items():
        if len(values) != count:
            raise InputError(f"series {name!r} has {len(values)} values for {count} sparsities")
    return MappingProxyType(dict(scores))


Text = Annotated[str, BeforeValidator(str)]
PARTS: dict[str, TypeAdapter[Any]] = {
    "dense": TypeAdapter(Annotated[Dense, AfterValidator(MappingProxyType)] | None),
    "results": TypeAdapter(tuple[Annotated[Result, AfterValidator(MappingProxyType)], ...]),
    "recipes": TypeAdapter(tuple[Annotated[RecipeRun, AfterValidator(MappingProxyType)], ...]),
    "shipped": TypeAdapter(tuple[Annotated[Shipped, AfterValidator(MappingProxyType)], ...]),
    "transition": TypeAdapter(Annotated[TransitionScores, AfterValidator(_aligned)] | None),
    "projections": TypeAdapter(tuple[Text, ...]),
    "provenance": TypeAdapter(Annotated[dict[Text, Text], AfterValidator(MappingProxyType)]),
}


@dataclass(frozen=True, eq=False)
class ReportData(Value):
    """Results of one model on one data set; a part that is empty or None is left out of the report.

    `results` holds one row per rule, repair, target sparsity and seed; `recipes` one per recipe, sparsity and seed;
    `shipped` one per network whose bytes and milliseconds are shown.
    """

    title: str
    model: str
    data: str
    dense: Mapping[str, Any] | None = None
    diagnosis: Diagnosis | None = None
    projections: Sequence[str] = ()
    allocations: Sequence[Allocation] = ()
    results: Sequence[Mapping[str, Any]] = ()
    transition: Mapping[str, Any] | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    recipes: Sequence[Mapping[str, Any]] = ()
    shipped: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        for name, kind in PARTS.items():
            object.__setattr__(self, name, _read(name, kind, getattr(self, name)))
        object.__setattr__(self, "allocations", tuple(self.allocations))
        if not all(self.allocations):
            raise InputError("an allocation of the report holds no layer")
        seen = set()
        for row in self.results:
            key = (row["rule"], row["repair"], round(row["sparsity"], 6), row["seed"])
            if key in seen:
                rule, repair, sparsity, seed = key
                raise InputError(
                    f"two results for rule {rule!r}, repair {repair!r}, sparsity {sparsity:g}, seed {seed}; "
                    "a report shows one setting, so make one report of each"
                )
            seen.add(key)

    def table(self) -> Table:
        return tables.accuracy(self)

    def to_dict(self) -> dict[str, Any]:
        return {name: _plain(part) for name, part in super().to_dict().items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ReportData:
        """Only title, model and data must be there; a diagnosis alone is a record without a model's name."""
        if "title" not in data and "rr" in data:
            data = {"title": "Diagnosis", "model": "", "data": f"{data['images']} images", "diagnosis": data}
        diagnosis = data.get("diagnosis")
        parts: dict[str, Any] = {name: str(data[name]) for name in ("title", "model", "data")}
        parts |= {name: data[name] for name in PARTS if data.get(name) is not None}
        parts["diagnosis"] = None if diagnosis is None else Diagnosis.from_dict(diagnosis)
        parts["allocations"] = [Allocation.from_dict(plan) for plan in data.get("allocations") or ()]
        return cls(**parts)


def _plain(part: Any) -> Any:
    """A part as plain objects, to which `_read` is the way back."""
    if isinstance(part, Value):
        return part.to_dict()
    if isinstance(part, tuple):
        return [_plain(piece) for piece in part]
    return dict(part) if isinstance(part, Mapping) else part


def _read(name: str, kind: TypeAdapter[Any], given: object) -> Any:
    """A part as its type says, or an error that names the place and repeats what stands there."""
    try:
        return kind.validate_python(given)
    except ValidationError as error:
        first, *others = error.errors()
        *parent, last = (name, *map(str, first["loc"]))
        if first["type"] == "missing":
            more = [str(x["loc"][-1]) for x in others if (x["type"], x["loc"][:-1]) == ("missing", first["loc"][:-1])]
            lacks = f"{'.'.join(parent)} lacks {', '.join([last, *more])}"
            raise InputError(f"{lacks}: {shortened(first['input'])}") from error
        ours = first.get("ctx", {}).get("error")
        words = str(ours) if isinstance(ours, InputError) else f"{first['msg']}, not {shortened(first['input'])}"
        raise InputError(f"{'.'.join((*parent, last))}: {words}") from error
