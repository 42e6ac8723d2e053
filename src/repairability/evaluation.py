"""How good a network is: accuracy with labels, agreement with the dense network without."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repairability._torch import evaluating, run, to_model
from repairability.errors import InputError
from repairability.progress import track
from repairability.tables import Table, Value, percent


@dataclass(frozen=True, eq=False)
class Metrics(Value):
    """On n labeled images: the share whose label is the first (among the first five) of the predictions, the mean
    cross-entropy, and the speed.
    """

    top1: float
    top5: float
    loss: float
    n: int
    images_per_second: float

    @property
    def standard_error(self) -> float:
        """Of top1, binomial."""
        return float((self.top1 * (1 - self.top1) / self.n) ** 0.5)

    def table(self) -> Table:
        row = (percent(self.top1), percent(self.standard_error), percent(self.top5), f"{self.loss:.4f}", f"{self.n:,}")
        caption = f"{self.images_per_second:,.0f} images per second"
        return Table(("top-1", "± standard error", "top-5", "loss", "images"), [row], caption=caption)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "standard_error": self.standard_error}


@dataclass(frozen=True, eq=False)
class Agreement(Value):
    """Of another network with the dense one, on n unlabeled images: the share of equal predictions, the mean
    KL(dense || other) in nats, and |logits_dense - logits_other|^2 / |logits_dense|^2.
    """

    same: float
    kl: float
    logit_error: float
    n: int
    chance: float  # of equal predictions if they were independent: sum over classes of both frequencies multiplied

    @property
    def standard_error(self) -> float:
        """Of `same`, binomial."""
        return float((self.same * (1 - self.same) / self.n) ** 0.5)

    def table(self) -> Table:
        row = (percent(self.same), percent(self.chance), f"{self.kl:.4f}", f"{self.logit_error:.4f}", f"{self.n:,}")
        return Table(("same prediction", "by chance", "mean KL", "logit error", "images"), [row])


def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Metrics:
    """Run labeled batches (images, labels) through `model`, in eval mode; the model is only read."""
    right = right5 = n = 0
    loss = spent = 0.0
    with evaluating(model):
        for images, labels in track(batches, "evaluating"):
            start = time.perf_counter()
            logits = _logits(model, images)
            spent += time.perf_counter() - start
            labels = labels.to(logits.device)
            if len(labels) and int(labels.max()) >= logits.shape[1]:
                raise InputError(f"labels go up to {int(labels.max())}, but the model has {logits.shape[1]} outputs")
            best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
            right += int(best[:, 0].sum())
            right5 += int(best.any(1).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
            n += len(labels)
    if not n:
        raise InputError("no images to evaluate on")
    return Metrics(right / n, right5 / n, loss / n, n, n / max(spent, 1e-9))


def agreement(dense: nn.Module, other: nn.Module, batches: Iterable[Tensor | tuple[Tensor, ...]]) -> Agreement:
    """Compare two networks on the same unlabeled images (of a tuple, the first item)."""

    def both() -> Iterator[tuple[Tensor, Tensor]]:
        with evaluating(dense), evaluating(other):
            for batch in track(batches, "comparing"):
                images = batch[0] if isinstance(batch, (tuple, list)) else batch
                yield _logits(dense, images), _logits(other, images)

    return agreement_of_logits(both())


def logits_of(model: nn.Module, batches: Iterable[Tensor]) -> list[Tensor]:
    """The outputs of a classifier, batch by batch; the model is only read."""
    with evaluating(model):
        return [_logits(model, images) for images in batches]


def agreement_of_logits(pairs: Iterable[tuple[Tensor, Tensor]]) -> Agreement:
    """The same from (dense, other) logits, for many networks compared with one dense."""
    same = n = 0
    kl = error = norm = 0.0
    predicted: tuple[list[Tensor], list[Tensor]] = ([], [])
    for theirs, ours in pairs:
        if theirs.shape != ours.shape:
            raise InputError(f"the networks put out {tuple(theirs.shape)} and {tuple(ours.shape)}")
        same += int((theirs.argmax(1) == ours.argmax(1)).sum())
        for counts, logits in zip(predicted, (theirs, ours), strict=True):
            counts.append(logits.argmax(1).bincount(minlength=logits.shape[1]).cpu())
        kl += float(kl_of_logits(theirs, ours).sum())
        error += float((theirs - ours).square().sum())
        norm += float(theirs.square().sum())
        n += len(ours)
    if not n:
        raise InputError("no images to compare on")
    dense_counts, other_counts = (torch.stack(counts).sum(0).double() for counts in predicted)
    chance = float(dense_counts @ other_counts) / n**2
    return Agreement(same / n, kl / n, error / max(norm, 1e-30), n, chance)


def kl_of_logits(dense: Tensor, other: Tensor) -> Tensor:
    """KL(dense || other) of each image [n], from logits [n, classes]."""
    return F.kl_div(other.log_softmax(1), dense.log_softmax(1), reduction="none", log_target=True).sum(1)


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    out = run(model, to_model(images, model))
    if not isinstance(out, Tensor) or out.dim() != 2:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(f"a classifier must put out [n, classes], not {shape}")
    return out.double() if out.dtype == torch.float64 else out.float()
