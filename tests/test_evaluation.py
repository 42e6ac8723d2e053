from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import small_net
from repairability import InputError, Metrics, evaluate
from repairability.evaluation import Figures, MeanIoU, Perplexity


class Fixed(nn.Module):
    """Logits that are the images themselves."""

    def forward(self, x: Tensor) -> Tensor:
        return x


LOGITS = torch.tensor([[3.0, 1, 0, 0, 0, 0, 0], [0, 2, 5, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0, 9], [0, 0, 0, 0, 0, 0, 1]])
LABELS = torch.tensor([0, 1, 1, 6])


def test_metrics_are_what_they_say() -> None:
    found = evaluate(Fixed(), [(LOGITS[:3], LABELS[:3]), (LOGITS[3:], LABELS[3:])])
    assert (found.top1, found.n) == (0.5, 4)
    assert found.top5 == (4 if 1 in LOGITS[2].topk(5).indices else 3) / 4
    expected = -torch.log_softmax(LOGITS, 1)[torch.arange(4), LABELS].mean()
    assert found.loss == pytest.approx(float(expected))
    assert found.standard_error == 0.25
    assert found.images_per_second > 0
    assert Metrics.from_json(found.to_json()) == found
    assert "50.00 %" in str(found)


def test_the_model_is_only_read() -> None:
    net = small_net()
    net.train()
    evaluate(net, [(torch.randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))])
    assert all(m.training for m in net.modules())


def test_clear_errors() -> None:
    with pytest.raises(InputError, match="labels go up to 9, but the model has 7 outputs"):
        evaluate(Fixed(), [(LOGITS, torch.tensor([0, 1, 2, 9]))])
    with pytest.raises(InputError, match="no images to evaluate on"):
        evaluate(Fixed(), [])
    with pytest.raises(InputError, match=r"must put out \[n, classes\], not \(2, 3, 4\)"):
        evaluate(Fixed(), [(torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.long))])
    with pytest.raises(InputError, match="does not take a batch of shape"):
        evaluate(small_net(), [(torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.long))])


def test_a_labeled_batch_may_be_a_tuple_or_a_mapping() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
            return {"hidden": -x, "logits": x if scale is None else x * scale}

    plain = evaluate(Fixed(), [(LOGITS, LABELS)])
    for batch in (
        (LOGITS, LABELS),
        [LOGITS, LABELS],
        (LOGITS, torch.ones(4, 1), LABELS),
        {"x": LOGITS, "labels": LABELS},
        {"target": LABELS, "scale": torch.ones(4, 1), "x": LOGITS},
    ):
        found = evaluate(Named(), [batch])
        assert (found.top1, found.top5, found.loss) == (plain.top1, plain.top5, plain.loss)
    other = evaluate(Named(), [(LOGITS, LABELS)], output="hidden")
    assert other.loss != plain.loss
    own = evaluate(Named(), [{"pixels": -LOGITS, "y": LABELS}], forward=lambda net, given: net(-given["pixels"]))
    assert own.loss == plain.loss
    for wrong in (LOGITS, {"x": LOGITS}, (LOGITS,), (LOGITS, "cat")):
        with pytest.raises(InputError, match="a labeled batch (is a tuple|has one of)"):
            evaluate(Named(), [wrong])


def test_a_metric_of_ones_own_sees_every_pair() -> None:
    def mean_absolute_error(pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
        errors = torch.cat([(output[:, 0] - wanted).abs() for output, wanted in pairs])
        return {"mae": float(errors.mean()), "n": len(errors)}

    batches = [(torch.tensor([[1.0], [2.0]]), torch.tensor([1.5, 1.0])), (torch.tensor([[5.0]]), torch.tensor([2.0]))]
    found = evaluate(Fixed(), batches, metric=mean_absolute_error)
    assert isinstance(found, Figures)
    assert found.values == {"mae": 1.5, "n": 3}
    assert "1.5000" in str(found)
    assert Figures.from_json(found.to_json()) == found


@pytest.mark.parametrize("shift", [False, True])
def test_perplexity_is_what_it_says(shift: bool) -> None:
    random = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(4, 6, 9, generator=random), torch.randint(0, 9, (4, 6), generator=random)
    labels[0, 3] = labels[2, 0] = -100
    found = evaluate(Fixed(), [(logits[:1], labels[:1]), (logits[1:], labels[1:])], metric=Perplexity(shift)).values
    terms = [
        -logits[i, t].log_softmax(0)[labels[i, t + shift]]
        for i in range(4)
        for t in range(6 - shift)
        if labels[i, t + shift] >= 0
    ]
    loss = float(torch.stack(terms).mean())
    assert found["tokens"] == len(terms)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)


def test_mean_iou_is_what_it_says() -> None:
    random = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(4, 3, 5, 6, generator=random), torch.randint(0, 2, (4, 5, 6), generator=random)
    labels[0, 0] = 255
    logits[:, 2] = -9  # class 2 is nowhere, and does not count
    found = evaluate(Fixed(), [(logits[:3], labels[:3]), (logits[3:], labels[3:])], metric=MeanIoU()).values
    known = labels != 255
    said, true = logits.argmax(1)[known], labels[known]
    expected = [int(((said == c) & (true == c)).sum()) / int(((said == c) | (true == c)).sum()) for c in (0, 1)]
    assert found["mean_iou"] == pytest.approx(sum(expected) / 2)
    assert found["pixel_accuracy"] == pytest.approx(float((said == true).float().mean()))
    assert found["pixels"] == int(known.sum())


@pytest.mark.parametrize(
    ("output", "labels", "metric", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2).long(), Perplexity(), r"perplexity wants logits \[n, T, V\]"),
        (torch.zeros(2, 3, 4), torch.full((2, 3), -100), Perplexity(), "no tokens to evaluate on"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 4).long(), MeanIoU(), r"mean IoU wants logits \[n, C, H, W\]"),
        (torch.zeros(2, 3, 4, 4), torch.full((2, 4, 4), 3), MeanIoU(), "labels must be between 0 and 2, or 255"),
        (torch.zeros(2, 3, 4, 4), torch.full((2, 4, 4), 255), MeanIoU(), "no pixels to evaluate on"),
    ],
)
def test_clear_errors_of_metrics(output: Tensor, labels: Tensor, metric: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(Fixed(), [(output, labels)], metric=metric)
