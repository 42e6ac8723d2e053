"""A study: a TOML file with a base spec, cases, axes and exclusions, whose product are its cells; or the runs of other
studies; and the sections that show them.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field
from pydantic.dataclasses import dataclass

from repairability._files import check_name, read_text
from repairability._json import read_json
from repairability.diagnostics.scan import LITERAL
from repairability.errors import InputError, first_line, shown
from repairability.experiments.spec import Checked, RunSpec, read_as
from repairability.naming import named
from repairability.scores import get_score
from repairability.training import TRAINED

if sys.version_info >= (3, 11):
    import tomllib
else:  # the standard library's reader came with 3.11
    import tomli as tomllib

DEFAULT = ("accuracy",)
"""The sections of a study that names none."""

SMOKE_IMAGES = 64

MOST_CELLS = 100_000
"""Of a study: a week of runs of six seconds each. They are all held in memory, and named in one file."""

Settings = dict[str, Any]
Name = Annotated[str, AfterValidator(check_name)]
Sections = Annotated[
    tuple[str, ...],
    Field(validation_alias=AliasChoices("sections", "section")),  # stores of earlier versions have one section
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
]


@dataclass(frozen=True)
class StudyEntry:
    """A study that was swept into a store: which runs are its own, and the sections that show them."""

    name: Name
    title: str
    sections: Sections
    about: str
    run_ids: tuple[Name, ...]
    smoke: bool = False


@dataclass(frozen=True)
class Study(StudyEntry):
    """What to run. Its sweep finds the ids of the runs; a store keeps those, and not the cells."""

    specs: Annotated[tuple[RunSpec, ...], Field(exclude=True)] = ()


class StudyFile(Checked):
    """What the file of a study may say."""

    what: ClassVar[str] = "key"
    title: str = ""
    about: str = ""
    section: str = ""
    sections: list[str] = Field([])
    runs_of: list[str] = Field([])
    base: Settings = Field({})
    cases: list[Settings] = Field([])
    axes: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field({})
    exclude: list[Settings] = Field([])

    def shown_by(self) -> tuple[str, ...]:
        """The sections, each under a name of its own."""
        if self.section and self.sections:
            raise InputError("a study has either section or sections")
        sections = (self.section,) if self.section else tuple(self.sections) or DEFAULT
        called = [section_name(section) for section in sections]
        if twice := [name for name in called if called.count(name) > 1]:
            raise InputError(f"two sections are called {twice[0]!r}: {', '.join(sections)}")
        return sections

    def cells(self) -> list[RunSpec]:
        """The product of the axes over the base with each case, without the exclusions; where the file names none of
        these, it may live on the runs of other studies.
        """
        if self.runs_of and not self.model_fields_set & {"base", "cases", "axes", "exclude"}:
            return []
        count = max(1, len(self.cases)) * math.prod(map(len, self.axes.values()))
        if count > MOST_CELLS:
            raise InputError(f"the product of cases and axes has {count:,} cells; a study takes at most {MOST_CELLS:,}")
        cells = [
            RunSpec.read({**self.base, **case, **dict(zip(self.axes, values, strict=True))})
            for case in self.cases or [{}]
            for values in itertools.product(*self.axes.values())
        ]
        kept = [cell for cell in cells if not any(_matches(cell, exclusion) for exclusion in self.exclude)]
        if not kept:
            raise InputError("no cell is left: the exclusions match all of them")
        return kept


def section_name(section: str) -> str:
    """What a section is called in documents: `package.module:callable` by its callable."""
    return section.rpartition(":")[2].rpartition(".")[2]


def read_study(path: str | Path) -> Study:
    """Read and check a study; every mistake is named with the file."""
    return _read(Path(path), ())


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """A file's text, and what it says."""
    try:
        text = read_text(path)
        return text, tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:  # also of numbers with too many digits
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not TOML: {first_line(error)}") from error


def _read(path: Path, above: tuple[Path, ...]) -> Study:
    """`above` are the studies that stand on this one."""
    text, content = read_toml(path)
    try:
        if path.resolve() in above:
            raise InputError("runs_of leads back to the study itself")
        file = read_as(StudyFile, content)
        others = [_read(path.parent / f"{name}.toml", (*above, path.resolve())) for name in file.runs_of]
        specs = _unique([*file.cells(), *(spec for study in others for spec in study.specs)])
        return Study(check_name(path.stem), file.title or path.stem, file.shown_by(), file.about, (), specs=specs)
    except InputError as error:
        raise InputError(f"{path}{_line(text, str(error))}: {shown(str(error), 800)}") from error


def _line(text: str, message: str) -> str:
    """Where the setting that a message begins with, or quotes, stands in the file; empty where it names none."""
    for number, line in enumerate(text.splitlines(), 1):
        key = re.match(r"\s*([\w-]+)\s*=", line)
        if key and (re.match(rf"{key[1]}\b", message) or repr(key[1]) in message):
            return f", line {number}"
    return ""


def only(study: Study, choices: Sequence[str]) -> Study:
    """The cells that fit every choice, such as "rule=rr" or "sparsity=0.95"."""
    wanted: dict[str, list[Any]] = {}
    for choice in choices:
        setting, equals, text = choice.partition("=")
        if not equals:
            raise InputError(f"--only takes SETTING=VALUE, such as rule=rr, not {choice!r}")
        wanted.setdefault(setting, []).append(_value(text))
    kept = tuple(spec for spec in study.specs if _matches(spec, wanted))
    if not kept:
        have = {setting: sorted({str(getattr(spec, setting)) for spec in study.specs}) for setting in wanted}
        raise InputError(f"no cell of {study.name} fits {', '.join(choices)}; it has {have}")
    return replace(study, specs=kept)


def smoke(study: Study) -> Study:
    """The same study in seconds, end to end: random or digits weights, noise or digits, 64 images, two sparsities
    (each network's ends; the last alone for a score that is dear), one seed, each network's first data set, a short
    recalibration. Its figures mean nothing.
    """
    first = {spec.model: spec.data for spec in reversed(study.specs)}
    specs = [spec for spec in study.specs if spec.data == first[spec.model]]
    points = {model: sorted({spec.sparsity for spec in specs if spec.model == model}) for model in first}
    seed = min(spec.seed for spec in specs)

    def stays(spec: RunSpec) -> bool:
        low = -1 if get_score(spec.score).solves else 0
        return spec.seed == seed and spec.sparsity in (points[spec.model][low], points[spec.model][-1])

    smoked = _unique([_smoked(spec) for spec in specs if stays(spec)])
    return replace(study, name=f"{study.name}-smoke", specs=smoked, smoke=True)


def _smoked(spec: RunSpec) -> RunSpec:
    values = spec.to_dict()
    values |= {name: _short(values[name]) for name in ("repair", "conditioned_on")}
    values |= {name: min(values[name], SMOKE_IMAGES) for name in ("count", "held_out")}
    values |= {"test_images": SMOKE_IMAGES, "null": False, "threads": 1}
    if spec.task == "detect":
        values |= {"sweep": [0.9, 0.95]}
    if spec.observe == LITERAL:
        values |= {"grid": [0.7, 0.975]}  # a repair for each layer and level
    if spec.weights != TRAINED:
        classes = 10 if spec.num_classes is None else spec.num_classes
        values |= {"weights": None, "data": f"random:{classes}", "image_size": None, "num_classes": classes}
    return RunSpec.read(values)


def _short(repair: str | None) -> str | None:
    return repair and "+".join("bn-short" if name.strip().startswith("bn") else name for name in repair.split("+"))


def _unique(specs: Sequence[RunSpec]) -> tuple[RunSpec, ...]:
    """Each cell once, in order."""
    return tuple({spec.model_dump_json(): spec for spec in specs}.values())


def _matches(spec: RunSpec, wanted: Mapping[str, Any]) -> bool:
    settings = {**spec.to_dict(), "recipe": spec.recipe and spec.recipe.name}
    pairs = [(named("setting", setting, settings), values) for setting, values in wanted.items()]
    return all(value in (values if isinstance(values, list) else [values]) for value, values in pairs)


def _value(text: str) -> Any:
    try:
        return None if text == "none" else read_json(text)
    except InputError:
        return text
