from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from networks import small_net
from repairability import InputError, Metrics, agreement, evaluate


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


def test_agreement_needs_no_labels() -> None:
    other = nn.Sequential(Fixed(), nn.Linear(7, 7, bias=False))
    with torch.no_grad():
        other[1].weight.copy_(2 * torch.eye(7))
    found = agreement(Fixed(), other, [LOGITS[:2], (LOGITS[2:],)])
    p, q = LOGITS.log_softmax(1), (2 * LOGITS).log_softmax(1)
    assert found.same == 1
    assert found.kl == pytest.approx(float((p.exp() * (p - q)).sum(1).mean()), rel=1e-5)
    assert found.logit_error == pytest.approx(1)
    self_agreement = agreement(Fixed(), Fixed(), [LOGITS])
    assert (self_agreement.same, self_agreement.logit_error) == (1, 0)
    frequencies = LOGITS.argmax(1).bincount(minlength=7) / 4
    assert self_agreement.chance == pytest.approx(float((frequencies**2).sum()))
    assert math.isclose(self_agreement.kl, 0, abs_tol=1e-7)


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
    with pytest.raises(InputError, match="no images to compare on"):
        agreement(Fixed(), Fixed(), [])
    with pytest.raises(InputError, match=r"must put out \[n, classes\], not \(2, 3, 4\)"):
        evaluate(Fixed(), [(torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.long))])
    with pytest.raises(InputError, match=r"put out \(4, 7\) and \(4, 3\)"):
        agreement(Fixed(), nn.Linear(7, 3), [LOGITS])
    with pytest.raises(InputError, match="does not take a batch of shape"):
        evaluate(small_net(), [(torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.long))])
