"""Record: what one run gave, and which of it is checked when it is read: a bad one is named, and blocks no report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, with_config
from pydantic.dataclasses import dataclass
from typing_extensions import NotRequired, TypedDict

from repairability._json import defined
from repairability.detect import Transition
from repairability.errors import MOST_COUNT, InputError
from repairability.experiments.spec import RunSpec, read_as
from repairability.tables import reading

OPEN = with_config(ConfigDict(extra="allow", strict=True, allow_inf_nan=False))
"""Keys that nobody knows are kept; a text is no number."""

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]


@OPEN
class AgreementFigures(TypedDict):
    """With the dense network."""

    same: NotRequired[Share | None]
    kl: NotRequired[float | None]


@OPEN
class PrunedFigures(TypedDict):
    """Of task "prune"."""

    achieved: Share
    global_sparsity: Share
    top1: Share
    n: Count
    dense_top1: NotRequired[Share | None]
    dense_bn_top1: NotRequired[Share | None]
    objective: NotRequired[float | None]
    agreement: NotRequired[AgreementFigures | None]
    projections: NotRequired[list[str] | None]
    allocation: NotRequired[dict[str, Share]]
    totals: NotRequired[dict[str, Count]]
    n_all: NotRequired[Count]


@OPEN
class ScoresFound(TypedDict):
    """A transition as its record holds it."""

    method: str
    sparsities: list[Share]
    series: dict[str, list[float | None]]
    core: Annotated[list[Share], Field(min_length=2, max_length=2)] | None
    broad: Annotated[list[Share], Field(min_length=2, max_length=2)] | None
    null: dict[str, float]
    collapse: Share | None


@OPEN
class DetectedFigures(TypedDict):
    """Of task "detect"."""

    transition: ScoresFound


@OPEN
class Circumstances(TypedDict):
    """Of the provenance."""

    seconds: NotRequired[dict[str, float] | None]
    peak_memory_mb: NotRequired[float | None]


def check_figures(task: str, status: str, result: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """Refuse a record whose figures no section could show."""
    read_as(Circumstances, dict(provenance))
    if status != "done":
        return
    read_as({"prune": PrunedFigures, "detect": DetectedFigures}[task], dict(result))
    if task == "detect":
        with reading("its transition cannot be shown"):
            transition = Transition.from_dict(result["transition"])
            if any(len(scores) != len(transition.sparsities) for scores in transition.series.values()):
                raise InputError("a series has as many scores as there are sparsities")
            transition.for_report()
            transition.table()


RECORD_VERSION = 1
"""Of a record's file: raised when an earlier version of this package would misread it."""

Plain = Annotated[dict[str, Any], AfterValidator(defined)]
"""Plain objects; a number that is not finite is None."""


_LEFT = "it is left alone; remove it to have its run again"


class ForeignRecordError(InputError):
    """A record that is whole and that this version does not understand: of a later one, or of settings that are refused
    by now. It is somebody's result: neither run again nor written over.
    """


@dataclass(frozen=True)
class Record:
    """What one run gave: its result, or the error it failed with, and where and when it came about.

    result of task "prune": achieved, global_sparsity, top1, top5, loss, n, dense_top1, dense_bn_top1, allocation and
    totals (by layer), n_all, projections, fingerprint, objective (J or None), agreement (a dict or None).
    result of task "detect": transition (Transition.to_dict()), fingerprint.
    provenance: commit, versions, hardware, weights and data (hashes of what was loaded), host, seconds (by stage),
    peak_memory_mb.
    """

    run_id: str
    spec: RunSpec
    status: Literal["done", "failed"]
    result: Plain = field(default_factory=dict)
    error: str = ""
    provenance: Plain = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Every field as plain objects."""
        return {**self.__dict__, "spec": self.spec.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """The content with a digest of it, so that an edited record is noticed."""
        content = {"record_version": RECORD_VERSION, **self.content()}
        return {**content, "digest": _digest(content)}

    @classmethod
    def from_dict(cls, content: Any) -> Record:
        if not isinstance(content, dict) or not {"run_id", "spec", "status", "digest"} <= content.keys():
            raise InputError("is not a whole record: it lacks run_id, spec, status or digest")
        version = content.get("record_version", RECORD_VERSION)
        if isinstance(version, int) and version > RECORD_VERSION:
            raise ForeignRecordError(f"is of a later version, {version}; {_LEFT}")
        fields = {key: value for key, value in content.items() if key != "digest"}
        if content["digest"] != _digest(fields):
            raise InputError("was edited: its digest does not fit its content")
        try:
            return cls.of({key: value for key, value in fields.items() if key != "record_version"})
        except InputError as error:
            raise ForeignRecordError(f"is whole, but this version makes none such ({error}); {_LEFT}") from error

    @classmethod
    def of(cls, content: object) -> Record:
        """From plain objects, which are not believed unseen."""
        record = read_as(cls, content)
        check_figures(record.spec.task, record.status, record.result, record.provenance)
        return record

    def row(self) -> dict[str, Any]:
        """One flat row: the spec's settings, then the plain figures of the result."""
        figures = {k: v for k, v in self.result.items() if v is None or isinstance(v, (int, float, str, bool))}
        return {
            "run_id": self.run_id,
            "status": self.status,
            **self.spec.to_dict(),
            **figures,
            "seconds": sum((self.provenance.get("seconds") or {}).values()),
            "commit": self.provenance.get("commit", ""),
            "hardware": self.provenance.get("hardware", ""),
            "error": self.error,
        }


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
