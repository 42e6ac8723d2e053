"""A study: a TOML file with a base spec, cases, axes and exclusions, whose product are its cells; or the runs of other
studies; and the sections that show them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import model_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from repairability._files import read_text
from repairability.errors import InputError, unknown
from repairability.experiments.spec import RunSpec
from repairability.training import TRAINED

if sys.version_info >= (3, 11):
    import tomllib
else:  # the standard library's reader came with 3.11
    import tomli as tomllib

KEYS = ("title", "sections", "section", "about", "runs_of", "base", "cases", "axes", "exclude")
CELLS = ("base", "cases", "axes", "exclude")
"""Keys about cells of a study's own; with `runs_of` it needs none of them."""

DEFAULT = ("accuracy",)
"""The sections of a study that names none."""


@dataclass(frozen=True)
class Study:
    """What to run, and the sections of the report that show it."""

    name: str
    title: str
    sections: tuple[str, ...]
    about: str
    specs: tuple[RunSpec, ...]
    smoke: bool = False

    def entry(self, run_ids: Sequence[str]) -> StudyEntry:
        """The study as a store keeps it, with the ids of its runs."""
        return StudyEntry(self.name, self.title, self.sections, self.about, tuple(run_ids), self.smoke)


@checked_dataclass(frozen=True)
class StudyEntry:
    """A study that was swept into a store: which runs are its own, and the sections that show them."""

    name: str
    title: str
    sections: tuple[str, ...]
    about: str
    run_ids: tuple[str, ...]
    smoke: bool = False

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, content: Any) -> Any:
        """They wrote one `section`."""
        if isinstance(content, Mapping) and "section" in content:
            rest = {key: value for key, value in content.items() if key != "section"}
            return {**rest, "sections": [content["section"]]}
        return content


def section_name(section: str) -> str:
    """What a section is called in documents: `package.module:callable` by its callable."""
    return section.rpartition(":")[2].rpartition(".")[2]


def read_study(path: str | Path) -> Study:
    """Read and check a study; every mistake is named with the file."""
    return _read(Path(path), ())


def _read(path: Path, above: tuple[Path, ...]) -> Study:
    """`above` are the studies that stand on this one."""
    try:
        content = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    try:
        if path.resolve() in above:
            raise InputError("runs_of leads back to the study itself")
        for key in content:
            if key not in KEYS:
                raise unknown("key", key, KEYS)
        others = [_read(path.parent / f"{name}.toml", (*above, path.resolve())) for name in _names(content, "runs_of")]
        own = _cells(content) if not others or any(key in content for key in CELLS) else []
        specs = _unique([*own, *(spec for study in others for spec in study.specs)])
        title, about = str(content.get("title", path.stem)), str(content.get("about", ""))
        return Study(path.stem, title, _sections(content), about, specs)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _sections(content: Mapping[str, Any]) -> tuple[str, ...]:
    if "section" in content and "sections" in content:
        raise InputError("a study has either section or sections")
    sections = (str(content["section"]),) if "section" in content else _names(content, "sections") or DEFAULT
    called = [section_name(section) for section in sections]
    if twice := [name for name in called if called.count(name) > 1]:
        raise InputError(f"two sections are called {twice[0]!r}: {', '.join(sections)}")
    return sections


def _names(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = content.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{key} must be a list of names, not {names!r}")
    return tuple(names)


def _cells(content: Mapping[str, Any]) -> list[RunSpec]:
    """The product of the axes over the base with each case, without the exclusions."""
    base, axes = _table(content, "base"), _table(content, "axes")
    cases, exclusions = _tables(content, "cases") or [{}], _tables(content, "exclude")
    for field in (*axes, *(key for exclusion in exclusions for key in exclusion)):
        _check_field(field)
    for field, values in axes.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"the axis {field!r} must be a list of values, not {values!r}")
    cells = [
        RunSpec.read({**base, **case, **dict(zip(axes, values, strict=True))})
        for case in cases
        for values in itertools.product(*axes.values())
    ]
    kept = [cell for cell in cells if not any(_matches(cell, exclusion) for exclusion in exclusions)]
    if not kept:
        raise InputError("no cell is left: the exclusions match all of them")
    return kept


def only(study: Study, choices: Sequence[str]) -> Study:
    """The cells that fit every choice, such as "rule=rr" or "sparsity=0.95"."""
    wanted: dict[str, list[Any]] = {}
    for choice in choices:
        field, equals, text = choice.partition("=")
        if not equals:
            raise InputError(f"--only takes SETTING=VALUE, such as rule=rr, not {choice!r}")
        _check_field(field)
        wanted.setdefault(field, []).append(_value(text))
    kept = tuple(spec for spec in study.specs if _matches(spec, wanted))
    if not kept:
        have = {field: sorted({str(getattr(spec, field)) for spec in study.specs}) for field in wanted}
        raise InputError(f"no cell of {study.name} fits {', '.join(choices)}; it has {have}")
    return replace(study, specs=kept)


SMOKE_IMAGES = 64


def smoke(study: Study) -> Study:
    """The same study in seconds, end to end: random or digits weights, noise or digits, 64 images, two sparsities
    (each network's ends; the last alone for a score that is dear), one seed, each network's first data set, a short
    recalibration. Its figures mean nothing.
    """
    first = {spec.model: spec.data for spec in reversed(study.specs)}
    specs = [spec for spec in study.specs if spec.data == first[spec.model]]
    points = {model: sorted({spec.sparsity for spec in specs if spec.model == model}) for model in first}
    seed = min(spec.seed for spec in specs)
    kept = [spec for spec in specs if spec.sparsity in _ends(points[spec.model], spec.score) and spec.seed == seed]
    return replace(study, name=f"{study.name}-smoke", specs=_unique([_smoked(spec) for spec in kept]), smoke=True)


def _ends(points: Sequence[float], score: str) -> tuple[float, ...]:
    return (points[-1],) if score == "second_order" else (points[0], points[-1])


def _smoked(spec: RunSpec) -> RunSpec:
    values = spec.to_dict()
    values |= {
        "repair": _short(spec.repair),
        "conditioned_on": None if spec.conditioned_on is None else _short(spec.conditioned_on),
        "count": min(spec.count, SMOKE_IMAGES),
        "test_images": SMOKE_IMAGES,
        "held_out": min(spec.held_out, SMOKE_IMAGES),
        "null": False,
        "threads": 2,
    }
    if spec.task == "detect":
        values |= {"sweep": [0.9, 0.95]}
    if spec.weights != TRAINED:
        classes = 10 if spec.num_classes is None else spec.num_classes
        values |= {"weights": None, "data": f"random:{classes}", "image_size": None, "num_classes": classes}
    return RunSpec.read(values)


def _short(repair: str) -> str:
    return "+".join("bn-short" if name.strip().startswith("bn") else name for name in repair.split("+"))


def _unique(specs: Sequence[RunSpec]) -> tuple[RunSpec, ...]:
    """Each cell once, in order."""
    return tuple({spec.model_dump_json(): spec for spec in specs}.values())


def _check_field(field: str) -> None:
    if field not in RunSpec.model_fields:
        raise unknown("setting", field, RunSpec.model_fields)


def _matches(spec: RunSpec, wanted: Mapping[str, Any]) -> bool:
    plain = spec.to_dict()
    return all(plain[key] in (value if isinstance(value, list) else [value]) for key, value in wanted.items())


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text, text)


def _table(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise InputError(f"[{key}] must be a table, not {table!r}")
    return table


def _tables(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    tables = content.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"[[{key}]] must be tables, not {tables!r}")
    return tables
