"""How near two networks are, without labels: by what they put out for the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repairability._torch import check_finite, evaluating, is_finite
from repairability.errors import InputError, unknown
from repairability.network.batches import Batch, Forward, not_for_ever, run, taken, to_model
from repairability.network.outputs import Output, is_logits, picked
from repairability.progress import track
from repairability.tables import Table, Value, percent

DISTANCES = ("kl", "error")

Distance = str | Callable[[Tensor, Tensor], Tensor] | None
"""KL over the last axis, relative squared error, or a function (dense, other) -> one number a sample; None: KL for
logits, the error for anything else.
"""


@dataclass(frozen=True, eq=False)
class Agreement(Value):
    """Of another network with the dense one, on n unlabeled samples, by a distance that is 0 where they say the same:
    `kl`, the mean KL(dense || other) of logits in nats, `error`, |dense - other|^2 / |dense|^2 of any outputs, or one's
    own. Of logits also the share of equal predictions.
    """

    same: float | None
    kl: float | None
    logit_error: float  # |dense - other|^2 / |dense|^2 of the outputs, logits or not
    n: int
    chance: (
        float | None
    )  # of equal predictions if they were independent: sum over classes of both frequencies multiplied
    distance: str = "kl"
    value: float | None = None  # the mean of the distance

    @property
    def standard_error(self) -> float | None:
        """Of `same`, binomial."""
        return None if self.same is None else float((self.same * (1 - self.same) / self.n) ** 0.5)

    def table(self) -> Table:
        columns: dict[str, str] = {}
        if self.same is not None and self.chance is not None and self.kl is not None:
            columns = {"same prediction": percent(self.same), "by chance": percent(self.chance)}
            columns["mean KL"] = f"{self.kl:.4f}"
        columns["logit error" if columns else "relative error"] = f"{self.logit_error:.4f}"
        if self.distance not in DISTANCES:
            columns[self.distance] = f"{self.value:.4f}"
        columns["images"] = f"{self.n:,}"
        return Table(tuple(columns), [tuple(columns.values())], caption=f"distance: {self.distance}")


def agreement(
    dense: nn.Module,
    other: nn.Module,
    batches: Batch | Iterable[Batch],
    *,
    forward: Forward | None = None,
    output: Output = None,
    distance: Distance = None,
) -> Agreement:
    """Compare two networks on the same unlabeled batches; both are only read.

    `output` picks the part that counts (its name, its place, a function of the output; else the logits, or the first
    tensor), `distance` says how: "kl" over the last axis, for logits; "error", the relative squared error; a function
    of both. Unsaid, KL for what is called logits or is a plain [n, classes], the error for anything else.
    """

    def both() -> Iterator[tuple[Tensor, Tensor]]:
        with evaluating(dense) as theirs, evaluating(other) as ours:
            several = [batches] if isinstance(batches, (Tensor, np.ndarray, Mapping)) else batches
            for batch in track(not_for_ever(map(_as_tensor, several)), "comparing"):
                given = taken(theirs, batch) if forward is None else batch
                raw = run(theirs, to_model(given, theirs), forward)
                compared.resolve(raw, output)
                yield picked(raw, output), picked(run(ours, to_model(given, ours), forward), output)

    check_finite(dense, "the dense network")
    check_finite(other, "the other network")
    compared = Comparison(distance)
    return agreement_of_outputs(both(), compared)


def _as_tensor(batch: Batch) -> Batch:
    return torch.as_tensor(batch) if isinstance(batch, np.ndarray) else batch


@dataclass
class Comparison:
    """A distance between outputs; where nobody said which, the first output decides."""

    distance: Distance = None

    def __post_init__(self) -> None:
        if isinstance(self.distance, str) and self.distance not in DISTANCES:
            raise unknown("distance", self.distance, DISTANCES)

    def resolve(self, raw: Any, output: Output = None) -> None:
        if self.distance is None:
            self.distance = "kl" if is_logits(raw, output, picked(raw, output)) else "error"

    @property
    def name(self) -> str:
        return self.distance if isinstance(self.distance, str) else getattr(self.distance, "__name__", "distance")

    def __call__(self, dense: Tensor, other: Tensor) -> Tensor:
        """One number for each sample [n]."""
        if callable(self.distance):
            return self.distance(dense, other)
        if self.distance == "error":
            error = (dense - other).square().flatten(1) if dense.dim() > 1 else (dense - other).square()[:, None]
            return error.sum(1) * len(dense) / dense.square().sum().clamp(min=1e-30)
        return kl_of_logits(dense, other)


def outputs_of(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    forward: Forward | None = None,
    output: Output = None,
    comparison: Comparison | None = None,
) -> list[Tensor]:
    """What a network puts out, batch by batch; the model is only read."""
    outputs = []
    with evaluating(model) as network:
        for batch in batches:
            raw = run(network, to_model(batch, network), forward)
            if comparison is not None:
                comparison.resolve(raw, output)
            outputs.append(picked(raw, output))
    return outputs


def agreement_of_outputs(pairs: Iterable[tuple[Tensor, Tensor]], comparison: Comparison | None = None) -> Agreement:
    """The same from (dense, other) outputs, for many networks compared with one dense; logits unless said otherwise."""
    compared = comparison or Comparison("kl")
    n = places = same = 0
    value = error = norm = 0.0
    predicted: tuple[list[Tensor], list[Tensor]] = ([], [])
    for theirs, ours in pairs:
        if theirs.shape != ours.shape:
            raise InputError(f"the networks put out {tuple(theirs.shape)} and {tuple(ours.shape)}")
        for whose, tensor in (("dense", theirs), ("other", ours)):
            if not is_finite(tensor):
                raise InputError(f"the {whose} network puts out nan or inf, which nothing can be compared with")
        if compared.distance == "kl":
            ways = theirs.argmax(-1).flatten(), ours.argmax(-1).flatten()
            same, places = same + int((ways[0] == ways[1]).sum()), places + len(ways[0])
            for counts, way in zip(predicted, ways, strict=True):
                counts.append(way.bincount(minlength=theirs.shape[-1]).cpu())
        value += float(compared(theirs, ours).sum())
        error += float((theirs - ours).square().sum())
        norm += float(theirs.square().sum())
        n += len(ours)
    if not n:
        raise InputError("no images to compare on")
    relative = error / max(norm, 1e-30)
    if compared.distance != "kl":
        mean = relative if compared.distance == "error" else value / n
        return Agreement(None, None, relative, n, None, compared.name, mean)
    dense_counts, other_counts = (torch.stack(counts).sum(0).double() for counts in predicted)
    chance = float(dense_counts @ other_counts) / places**2
    return Agreement(same / places, value / n, relative, n, chance, "kl", value / n)


def kl_of_logits(dense: Tensor, other: Tensor) -> Tensor:
    """KL(dense || other) over the last axis, the mean over the others: of each sample [n], from logits [n, ..., V]."""
    if dense.dim() < 2 or dense.shape[-1] < 2:
        raise InputError(
            f"KL needs the logits of two classes or more, and the output is {tuple(dense.shape)}: any two networks of "
            "one column would agree; distance='error' compares the values"
        )
    both = other.log_softmax(-1), dense.log_softmax(-1)
    divergence = F.kl_div(*both, reduction="none", log_target=True).sum(-1)
    return divergence if divergence.dim() == 1 else divergence.flatten(1).mean(1)
