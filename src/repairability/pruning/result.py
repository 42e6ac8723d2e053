"""PruneResult: a pruned and repaired network, and how it came about."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from repairability._files import check_file, write_atomically
from repairability._html import view
from repairability.allocation import Allocation
from repairability.checkpoints import DENSE, EXACT, FORMATS, FileInfo, save_checkpoint
from repairability.curves import Curves
from repairability.diagnostics import Diagnosis
from repairability.masks import Masks
from repairability.pruning.page import run_page
from repairability.tables import Table, percent


@dataclass(frozen=True)
class Trial:
    """One candidate of a choice without labels: how far its network is from the dense one on held-out images."""

    rule: str
    score: str
    repair: str
    kl: float | None = None  # mean distance, KL(dense || pruned) in nats for logits; none where it could not be made
    same: float | None = None  # share of equal predictions, of logits
    seconds: float = 0.0
    chosen: bool = False
    problem: str = ""
    distance: str = "kl"


@dataclass(frozen=True)
class PruneResult:
    """A pruned and repaired copy of a network, and how it came about."""

    model: nn.Module
    allocation: Allocation
    masks: Masks
    repair: str
    fingerprint: str  # of the calibration images
    diagnosis: Diagnosis | None = None
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds per stage
    score: str = "magnitude"
    trials: tuple[Trial, ...] = ()  # of a choice without labels, this one among them
    notes: tuple[str, ...] = ()  # what the repair did here, what was left out and why
    recipe: str = ""  # its name, with the parts that were replaced
    work: float | None = None  # the share of the prunable layers' multiply-adds that is gone
    memory_mb: float | None = None  # by which the process grew at its peak, diagnosis included; None: not known

    @property
    def sparsity(self) -> float:
        """Over the prunable weights."""
        return self.allocation.sparsity

    @property
    def global_sparsity(self) -> float:
        """Over all weights of the pruned types, the dense stem included."""
        return self.allocation.global_sparsity

    @property
    def coverage(self) -> float | None:
        """The share of all parameters that might be pruned."""
        return self.allocation.coverage

    @property
    def seconds(self) -> float:
        """What this recipe took, over all stages; what a choice tried beside it stands in the trials."""
        return sum(self.timings.values())

    def save(self, path: str | os.PathLike[str], *, format: str = DENSE, values: str = EXACT) -> FileInfo:
        """Write the model and what this object knows as safetensors; `repairability.load` reads it back.

        `format` "sparse" stores no zeros: the file is within some percent of the entropy of what it holds. `values`
        "float16" or "int8" (a scale for each filter) round the weights; what is returned states the largest error.
        """
        return self._file(path, format, values)

    def sizes(self) -> dict[str, int]:
        """Bytes of the file that `save` would write, by its format."""
        return {format: self._file(None, format, EXACT).size for format in FORMATS}

    def _file(self, path: str | os.PathLike[str] | None, format: str, values: str) -> FileInfo:
        way = {"recipe": self.recipe, "score": self.score, "repair": self.repair, "format": format, "values": values}
        return save_checkpoint(path, self.model, self.allocation, fingerprint=self.fingerprint, **way)

    def report(self, path: str | os.PathLike[str], *, title: str = "A pruned network") -> None:
        """Write a page about this run: one HTML file that needs nothing else, neither a network nor a library."""
        check_file(path)
        write_atomically(path, run_page(self, title))

    def charts(self) -> list[str]:
        """What can be drawn of it: each layer's sparsity, and what was measured of each."""
        return [*self.allocation.charts(), *(self.diagnosis.charts() if self.diagnosis else [])]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return view(self.charts(), [*([self.trials_table()] if self.trials else []), self.table()])

    def table(self) -> Table:
        columns = ["layer", "kept", "total", "sparsity"]
        measured = {} if self.diagnosis is None else {m: self.diagnosis.measured(m) for m in self.diagnosis.measures}
        rows = []
        for layer, total in self.allocation.totals.items():
            s = self.allocation[layer]
            row = [layer, f"{total - self.allocation.pruned(layer):,}", f"{total:,}", f"{s:.4f}"]
            rows.append(row + [_at(curves, layer, s) for curves in measured.values()])
        spent = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in self.timings.items())
        caption = (
            f"rule {self.allocation.rule}, score {self.score}, repair {self.repair}: {percent(self.sparsity)} of the "
            f"prunable weights, {percent(self.global_sparsity)} of all{self._work()}\n"
            f"recipe {self.recipe}: {self.seconds:.2f} s ({spent})"
        )
        if self.memory_mb is not None:
            caption += f", memory grown by {self.memory_mb:,.0f} MB at its peak"
        if self.coverage is not None:
            caption += f"\n{percent(self.coverage)} of all parameters might be pruned"
        caption += "".join(f"\n{note}" for note in self.notes)
        return Table([*columns, *measured], rows, caption=caption)

    def _work(self) -> str:
        return "" if self.work is None else f"; {percent(self.work)} of the multiply-adds with the prunable ones"

    def trials_table(self) -> Table:
        """What a choice without labels tried, and what it took."""
        taken = next((x.kl for x in self.trials if x.chosen), None)
        rows = [
            (
                x.rule,
                x.score,
                x.repair,
                "" if x.kl is None else f"{x.kl:.4f}",
                "" if x.same is None else percent(x.same),
                f"{x.seconds:.1f}",
                "chosen" if x.chosen else x.problem or _why_not(x.kl, taken),
            )
            for x in self.trials
        ]
        distance = {"kl": "mean KL", "error": "relative error"}.get(self.trials[0].distance, self.trials[0].distance)
        columns = ("rule", "score", "repair", distance, "same prediction", "seconds", "")
        return Table(columns, rows, caption="compared with the dense network on held-out unlabeled images")

    def __str__(self) -> str:
        return "\n\n".join(str(x) for x in ([self.trials_table()] if self.trials else []) + [self.table()])

    def to_dict(self) -> dict[str, Any]:
        """Plain objects: what `--json` prints."""
        return {
            **self.allocation.to_dict(),
            "recipe": self.recipe,
            "score": self.score,
            "repair": self.repair,
            "calibration": self.fingerprint,
            "timings": dict(self.timings),
            "seconds": self.seconds,
            "memory_mb": self.memory_mb,
            "work": self.work,
            "coverage": self.coverage,
            "notes": list(self.notes),
            **({"trials": [asdict(trial) for trial in self.trials]} if self.trials else {}),
        }


def _why_not(kl: float | None, taken: float | None) -> str:
    """`best` prefers an earlier candidate to a later one whose lead may be chance."""
    return "its lead is within noise" if kl is not None and taken is not None and kl < taken else ""


def _at(curves: Curves, layer: str, sparsity: float) -> str:
    """The measured value at a grid sparsity; nothing between the points."""
    return f"{curves.at(layer, sparsity):.4f}" if layer in curves and sparsity in curves.grid[layer] else ""
