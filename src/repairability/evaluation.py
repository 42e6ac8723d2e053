"""How good a network is, with labels: accuracy, or a metric of one's own; perplexity and mean IoU are given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repairability._torch import check_finite, check_output, evaluating
from repairability.errors import InputError
from repairability.network.batches import LABELS, Batch, Forward, described, not_for_ever, run, taken, to_model
from repairability.network.outputs import Output, picked
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


Pairs = Iterable[tuple[Tensor, Tensor]]
"""(what the network puts out, labels) of batch after batch."""

Metric = Callable[[Pairs], Mapping[str, float]]
"""What a network is judged by: all its outputs with their labels in, figures out."""


@dataclass(frozen=True, eq=False)
class Figures(Value):
    """What a metric says of a network."""

    values: Mapping[str, float]

    def table(self) -> Table:
        return Table(tuple(self.values), [tuple(f"{value:,.4f}" for value in self.values.values())])


@overload
def evaluate(
    model: nn.Module, batches: Iterable[Batch], *, forward: Forward | None = None, output: Output = None
) -> Metrics: ...


@overload
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    metric: Metric,
    forward: Forward | None = None,
    output: Output = None,
) -> Figures: ...


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    metric: Metric | None = None,
    forward: Forward | None = None,
    output: Output = None,
) -> Metrics | Figures:
    """Run labeled batches through `model`, in eval mode; the model is only read.

    A batch is a tuple whose last item are the labels, or a mapping with "labels" (or "label", "targets", "target").
    Without a metric the network is a classifier, [n, classes]. `metric` takes the pairs of outputs and labels of all
    batches and gives figures: `Perplexity()`, `MeanIoU(classes)`, or a function of one's own. `output` picks from a
    tuple or mapping; `forward(model, batch)` is given the batch without its labels. A network that holds nan or inf, or
    puts such out, is refused.
    """
    check_finite(model)
    spent: list[float] = []

    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        with evaluating(model) as network:
            for batch in track(not_for_ever(batches), "evaluating"):
                inputs, labels = _apart(batch)
                start = time.perf_counter()
                raw = run(network, to_model(inputs if forward else taken(network, inputs), network), forward)
                spent.append(time.perf_counter() - start)
                tensor = picked(raw, output)
                check_output(tensor)
                yield tensor, labels.to(tensor.device)

    if metric is not None:
        return Figures({name: float(value) for name, value in metric(pairs()).items()})
    right = right5 = n = 0
    loss = 0.0
    for logits, labels in pairs():
        if logits.dim() != 2:
            raise InputError(
                f"a classifier must put out [n, classes], not {tuple(logits.shape)}; metric= judges others"
            )
        labels = check_labels(labels, logits)
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
        right += int(best[:, 0].sum())
        right5 += int(best.any(1).sum())
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        n += len(labels)
    if not n:
        raise InputError("no images to evaluate on")
    return Metrics(right / n, right5 / n, loss / n, n, n / max(sum(spent), 1e-9))


def check_labels(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels [n] as whole numbers of which each is one of the outputs [n, classes], or an error that says what is."""
    whole = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
    if labels.shape != logits.shape[:1] or not whole:
        raise InputError(f"labels must be {len(logits)} whole numbers, one for each image, not of {described(labels)}")
    if len(labels) and int(labels.max()) >= logits.shape[1]:
        raise InputError(f"labels go up to {int(labels.max())}, but the model has {logits.shape[1]} outputs")
    if len(labels) and int(labels.min()) < 0:
        raise InputError(f"labels count from 0; one is {int(labels.min())}")
    return labels.long()


def _apart(batch: Batch) -> tuple[Batch, Tensor]:
    """Inputs and labels of a batch."""
    if isinstance(batch, Mapping):
        name = next((x for x in batch if x in LABELS), None)
        if name is None:
            raise InputError(f"a labeled batch has one of {', '.join(sorted(LABELS))}; this one has {', '.join(batch)}")
        return {key: value for key, value in batch.items() if key != name}, batch[name]
    if not isinstance(batch, (tuple, list)) or len(batch) < 2 or not isinstance(batch[-1], Tensor):
        raise InputError("a labeled batch is a tuple that ends with a tensor of labels, or a mapping with labels")
    *inputs, labels = batch
    return inputs[0] if len(inputs) == 1 else tuple(inputs), labels


@dataclass(frozen=True)
class Perplexity:
    """exp(mean cross-entropy) of a language model's logits [n, T, V] for token ids [n, T]; ids of -100 do not count.

    `shift`: the labels are the inputs themselves, so the logits at t are for the label at t + 1 (as in transformers).
    """

    shift: bool = False

    def __call__(self, pairs: Pairs) -> Mapping[str, float]:
        loss, n = 0.0, 0
        for logits, labels in pairs:
            if logits.dim() != 3 or labels.shape != logits.shape[:2]:
                raise InputError(
                    f"perplexity wants logits [n, T, V] and labels [n, T], not {tuple(logits.shape)} and "
                    f"{tuple(labels.shape)}"
                )
            if self.shift:
                logits, labels = logits[:, :-1], labels[:, 1:]
            known = labels[labels != -100]
            if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < logits.shape[2]:
                raise InputError(f"token ids must be between 0 and {logits.shape[2] - 1}, or -100")
            loss += float(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"))
            n += int((labels != -100).sum())
        if not n:
            raise InputError("no tokens to evaluate on")
        return {"perplexity": float(torch.tensor(loss / n, dtype=torch.float64).exp()), "loss": loss / n, "tokens": n}


@dataclass(frozen=True)
class MeanIoU:
    """The mean over classes of intersection / union of predicted and true pixels, from logits [n, C, H, W] and labels
    [n, H, W]; labels of 255 do not count, nor does a class that is nowhere.
    """

    ignore: int = 255

    def __call__(self, pairs: Pairs) -> Mapping[str, float]:
        counts: Tensor | None = None
        for logits, labels in pairs:
            if logits.dim() != 4 or labels.shape != (len(logits), *logits.shape[2:]):
                raise InputError(
                    f"mean IoU wants logits [n, C, H, W] and labels [n, H, W], not {tuple(logits.shape)} and "
                    f"{tuple(labels.shape)}"
                )
            classes, known = logits.shape[1], labels != self.ignore
            if bool((labels[known] >= classes).any()) or bool((labels[known] < 0).any()):
                raise InputError(f"labels must be between 0 and {classes - 1}, or {self.ignore}")
            cells = labels[known].long() * classes + logits.argmax(1)[known]
            table = cells.bincount(minlength=classes**2).view(classes, classes).cpu()
            counts = table if counts is None else counts + table
        if counts is None or not int(counts.sum()):
            raise InputError("no pixels to evaluate on")
        both = counts.diagonal()
        union = counts.sum(0) + counts.sum(1) - both
        there = union > 0
        figures = {"mean_iou": float((both[there] / union[there]).mean())}
        return {**figures, "pixel_accuracy": float(both.sum() / counts.sum()), "pixels": float(counts.sum())}
