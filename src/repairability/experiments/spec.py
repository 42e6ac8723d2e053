"""RunSpec: everything that decides one run's result; its id is a hash of what differs from the defaults. Job: where
its files lie.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from repairability._json import read_json
from repairability._torch import MOST_SEED, MOST_THREADS
from repairability.allocation import check_sparsity
from repairability.detect import METHODS, RULES_OF
from repairability.diagnostics import OBSERVE
from repairability.errors import InputError, shortened, unknown
from repairability.network.discover import FIRST_CONV
from repairability.pruning import AUTO, RECIPES, PruneConfig, Recipe, get_recipe
from repairability.pruning.choose import TRIED_RULES
from repairability.repairs import get_repair
from repairability.rules import RULES, get_rule, own_options
from repairability.scores import SCORES, get_score
from repairability.training import TRAINED, check_trained

Kind = TypeVar("Kind")

VERSION = 1
"""Part of every id: raised when the computation changes, a default included."""

FIT_VERSION = 2
"""The same for runs that solve least squares. 2: the ridge grows with the unknowns per sample."""


PAPER_LAYERS: dict[str, Any] = {"types": ("conv",), "skip": (FIRST_CONV,)}
"""What studies prune: every convolution but the first, as in the paper."""


class Checked(BaseModel):
    """Settings from a file or another process: frozen, validated; a key nobody knows is refused with the near match."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    what: ClassVar[str] = "setting"

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, Mapping) else ():
            if key not in cls.model_fields:
                raise unknown(cls.what, str(key), cls.model_fields)
        return values

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class RunSpec(Checked):
    """One run: prune, repair and evaluate one network (or detect its transition)."""

    model: str = Field(
        description="a torchvision name, resnet20/32/44/56/110, digits, package.module:callable or file.py:callable"
    )
    data: str = Field(description="a data set's name, npz:FILE or folder:FOLDER")
    task: Literal["prune", "detect"] = Field("prune", description="prune, repair and evaluate; or seek the transition")
    weights: str | None = Field(None, description="a state dict's file, 'imagenet', 'trained' (digits), none: random")
    num_classes: int | None = Field(None, ge=1, description="classes of the model's head")
    image_size: int | None = Field(None, ge=1, description="resize images to this side")
    rule: str = Field("rr", description=f"one of {', '.join(RULES)}, or {AUTO}: chosen without labels")
    options: dict[str, Any] = Field(default_factory=dict, description="the rule's own: solver, pinned, rest, floor ...")
    score: str = Field("magnitude", description=f"which weights go: {', '.join(SCORES)}")
    repair: str = Field("cr+bn", description="a repair's name, or a chain such as cr+bn")
    conditioned_on: str | None = Field(None, description="the repair that rr reckons with; none: the one applied")
    sparsity: float = Field(0.95, description="the target, over the prunable weights")
    grid: Literal["paper", "auto"] | tuple[float, ...] = Field(
        "paper", description="sparsities the diagnosis measures; auto: to 99.5 % for a target of 97.5 % or more"
    )
    observe: str = Field("layer", description=f"where damage is measured: {', '.join(OBSERVE)}")
    seed: int = Field(0, ge=0, le=MOST_SEED, description="of the calibration images, and of random weights")
    count: int = Field(128, ge=1, description="calibration images for the statistics")
    test_images: int | None = Field(None, ge=1, description="only the first so many test images")
    held_out: int = Field(0, ge=0, description="unlabeled images for the agreement with the dense network; 0: none")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the finished network's forward passes; bfloat16 takes half the time on a new CPU"
    )
    objective: bool = Field(False, description="also J, the mean of rr at the allocation's own sparsities")
    method: str = Field("cts", description=f"detect: {' or '.join(METHODS)}")
    sweep: tuple[float, ...] | None = Field(None, description="detect: the sparsities; none: the method's own")
    null: bool = Field(True, description="detect: also run the detector without information")
    threads: int = Field(
        1, ge=1, le=MOST_THREADS, description="CPU threads of the run; they decide the last bits of a sum"
    )

    @model_validator(mode="before")
    @classmethod
    def _parts_of_a_recipe(cls, values: Any) -> Any:
        """`recipe` is a shorthand for those of its parts that are not given; its options go with its own rule."""
        if not isinstance(values, Mapping) or "recipe" not in values:
            return values
        given = {name: value for name, value in values.items() if name != "recipe"}
        recipe = get_recipe(values["recipe"])
        parts = {"rule": recipe.rule, "score": recipe.score, "repair": recipe.repair}
        if "rule" not in given and isinstance(given.get("options", {}), Mapping):
            given["options"] = {**recipe.options, **given.get("options", {})}
        return {**parts, **given}

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """`sparsity = true` is a mistake, where pydantic reads 1."""
        listed = value if isinstance(value, (list, tuple)) else [value]
        truth = info.field_name is not None and cls.model_fields[info.field_name].annotation is bool
        if not truth and any(isinstance(item, bool) for item in listed):
            raise InputError(f"{info.field_name} takes no true or false: {shortened(value)}")
        return value

    def model_post_init(self, _: Any) -> None:
        check_sparsity(self.sparsity)
        for name, points in (("grid", self.grid), ("sweep", self.sweep)):
            rising = points is None or isinstance(points, str) or all(a < b for a, b in itertools.pairwise(points))
            if not rising or points == ():
                raise InputError(f"{name} must rise and not be empty: {shortened(list(points or ()))}")
        for sparsity in (*(() if isinstance(self.grid, str) else self.grid), *(self.sweep or ())):
            check_sparsity(sparsity, "a sparsity of the grid or sweep")
        for kind, given, known in (
            ("rule", self.rule, (*RULES, AUTO)),
            ("score", self.score, SCORES),
            ("observe", self.observe, OBSERVE),
            ("method", self.method, METHODS),
        ):
            if given not in known:
                raise unknown(kind, given, known)
        for repair in (self.repair, self.conditioned_on):
            if repair is not None:
                get_repair(repair)
        _check_plain(self.options)
        tried = TRIED_RULES if self.rule == AUTO else (self.rule,)
        rules = tried if self.task == "prune" else RULES_OF[self.method]
        for rule in rules:
            get_rule(rule).check(own_options(rule, rules, self.options))
        if self.weights == TRAINED:
            check_trained(self.model, self.data, self.num_classes)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> RunSpec:
        return read_as(cls, values)

    @property
    def recipe(self) -> Recipe | None:
        """None where the rule is yet to be chosen."""
        return None if self.rule == AUTO else Recipe(self.rule, self.score, self.repair, self.options)

    @property
    def config(self) -> PruneConfig:
        """How `prune` and `find_transition` are told of the rest."""
        return PruneConfig(self.grid, self.observe, self.conditioned_on, self.options, **PAPER_LAYERS, count=self.count)

    @property
    def fits(self) -> bool:
        """Whether least squares decide anything: the weights that go, what becomes of the others, or the curves."""
        repairs = [get_repair(name) for name in (self.repair, self.conditioned_on) if name is not None]
        return get_score(self.score).solves or any(repair.fit is not None for repair in repairs)

    def differences(self) -> dict[str, Any]:
        """What is not at its default, in the order of the fields."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def run_id(self, contents: Mapping[str, str]) -> str:
        """`contents` replaces the names of files by hashes of what is in them: {"weights": ..., "data": ...}."""
        fit = {"fit_version": FIT_VERSION} if self.fits else {}
        text = json.dumps({"version": VERSION, **fit, **self.differences(), **contents}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_plain(options: Mapping[str, Any]) -> None:
    """They stand in records, so JSON must hold them."""
    try:
        read_json(json.dumps(options, allow_nan=False, default=str))
    except (ValueError, RecursionError) as error:
        raise InputError(f"options must be plain and finite, not {shortened(options)}") from error


class Job(Checked):
    """A run and where things lie: nothing here but the spec decides its result."""

    run_id: str
    spec: RunSpec
    weights: str | None  # the file, or a word that create_model knows
    data: str
    weights_hash: str | None = None  # of the content that the id is of; None: whatever is there
    data_hash: str | None = None
    root: str = "data"
    store: str | None = None  # for the cache
    device: str = "cpu"


def describe() -> list[tuple[str, str, str]]:
    """Name, default and meaning of every setting; the shorthand `recipe` last."""
    rows = []
    for name, field in RunSpec.model_fields.items():
        default = "" if field.is_required() else json.dumps(field.get_default(call_default_factory=True))
        rows.append((name, default, field.description or ""))
    words = "when a spec is read, stands for those of rule, options, score and repair that are not given"
    return [*rows, ("recipe", "", f"{', '.join(RECIPES)}: {words}")]


_adapters: dict[object, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """What pydantic knows of a type, made once."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def read_as(kind: type[Kind], content: object) -> Kind:
    """Plain content, as a file or another process gave it, as a value of this type; what is wrong is named."""
    try:
        value: Kind = _adapter(kind).validate_python(content)
        return value
    except ValidationError as error:
        first = error.errors()[0]
        if isinstance(first.get("ctx", {}).get("error"), InputError):
            raise first["ctx"]["error"] from None  # ours, with its own words
        name = ".".join(map(str, first["loc"])) or f"the {kind.__name__}"
        given = "" if first["type"] == "missing" else f", not {shortened(first['input'])}"
        raise InputError(f"{name}: {first['msg']}{given}") from error


def plain(value: object) -> dict[str, Any]:
    """A dataclass or pydantic value as plain content; `read_as` is the way back."""
    content: dict[str, Any] = _adapter(type(value)).dump_python(value, mode="json")
    return content
