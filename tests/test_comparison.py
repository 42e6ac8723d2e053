from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import small_net
from repairability import InputError, agreement
from repairability.comparison import Agreement, Comparison, agreement_of_outputs, kl_of_logits, outputs_of
from test_evaluation import LOGITS, Fixed
from test_sacred import complete_state, same, users_model

TOKENS = torch.randn(6, 4, 9, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """What it is given, times a number; by name where one is said."""

    def __init__(self, factor: float = 1.0, name: str = "") -> None:
        super().__init__()
        self.factor, self.name = nn.Parameter(torch.tensor(float(factor))), name

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        out = x * self.factor
        return {"loss": out.sum(), self.name: out} if self.name else out


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


def test_arrays_are_batches_too() -> None:
    x, two = TOKENS[:, 0], (Scaled(1), Scaled(1.5))
    assert agreement(*two, x.numpy()) == agreement(*two, x)
    assert agreement(*two, [x[:4].double().numpy(), x[4:].numpy()]) == agreement(*two, [x[:4], x[4:]])


def test_kl_over_the_last_axis_is_the_mean_over_the_others() -> None:
    p, q = TOKENS.log_softmax(-1), (2 * TOKENS).log_softmax(-1)
    expected = (p.exp() * (p - q)).sum(-1).mean(1)
    torch.testing.assert_close(kl_of_logits(TOKENS, 2 * TOKENS), expected)
    assert kl_of_logits(TOKENS, 2 * TOKENS).shape == (6,)
    assert float(kl_of_logits(TOKENS, TOKENS + 3).abs().max()) < 1e-6  # logits know no constant


def test_what_is_called_logits_is_compared_as_such() -> None:
    """A language model's [n, T, V]: equal predictions are counted token by token."""
    found = agreement(Scaled(1, "logits"), Scaled(-1, "logits"), [TOKENS[:4], TOKENS[4:]])
    assert found.distance == "kl"
    assert found.same == pytest.approx(float((TOKENS.argmax(-1) == TOKENS.argmin(-1)).float().mean()))
    assert found.kl == found.value == pytest.approx(float(kl_of_logits(TOKENS, -TOKENS).mean()), rel=1e-5)
    assert found.n == 6
    assert found.chance is not None
    assert 0 < found.chance < 1
    unnamed = agreement(Scaled(1), Scaled(-1), [TOKENS])
    assert (unnamed.distance, unnamed.same, unnamed.kl) == ("error", None, None)
    said = agreement(Scaled(1), Scaled(-1), [TOKENS], distance="kl")
    assert said.kl == pytest.approx(found.kl, rel=1e-5)


def test_two_regressors_are_compared_by_their_error() -> None:
    """One column: any two of them would agree by KL."""
    x = TOKENS[:, 0, :1]
    found = agreement(Scaled(1), Scaled(1.5), [x])
    assert found.distance == "error"
    assert found.value == found.logit_error == pytest.approx(0.25)
    assert (found.same, found.kl, found.chance, found.standard_error) == (None, None, None, None)
    assert "relative error" in str(found)
    assert "KL" not in str(found)
    assert agreement(Scaled(1), Scaled(1), [x]).value == 0
    with pytest.raises(InputError, match=r"KL needs the logits of two classes or more, and the output is \(6, 1\)"):
        agreement(Scaled(1), Scaled(1.5), [x], distance="kl")
    with pytest.raises(InputError, match="KL needs the logits of two classes or more"):
        kl_of_logits(torch.zeros(6), torch.zeros(6))


@pytest.mark.parametrize("shape", [(6,), (6, 4), (6, 4, 9)])
def test_the_error_of_each_sample_adds_up_to_that_of_all(shape: tuple[int, ...]) -> None:
    dense = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    other = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    each = Comparison("error")(dense, other)
    assert each.shape == (6,)
    assert float(each.mean()) == pytest.approx(float((dense - other).square().sum() / dense.square().sum()), rel=1e-5)


def test_a_distance_of_ones_own() -> None:
    def largest(dense: Tensor, other: Tensor) -> Tensor:
        return (dense - other).abs().flatten(1).amax(1)

    found = agreement(Scaled(1), Scaled(2), [TOKENS[:4], TOKENS[4:]], distance=largest)
    assert found.distance == "largest"
    assert found.value == pytest.approx(float(TOKENS.abs().flatten(1).amax(1).mean()), rel=1e-5)
    assert found.logit_error == pytest.approx(1)
    assert "largest" in str(found)


def test_the_first_output_decides_once() -> None:
    comparison = Comparison()
    outputs_of(Scaled(1), [TOKENS], comparison=comparison)
    assert comparison.distance == "error"
    outputs_of(Scaled(1), [LOGITS], comparison=comparison)
    assert comparison.distance == "error"
    said = Comparison("kl")
    outputs_of(Scaled(1), [TOKENS], comparison=said)
    assert said.distance == "kl"


def test_a_part_is_picked_of_both() -> None:
    class Two(Scaled):
        def forward(self, x: Tensor) -> Any:
            return {"logits": x, "boxes": x * self.factor}

    assert agreement(Two(1), Two(3), [LOGITS]).kl == 0
    assert agreement(Two(1), Two(3), [LOGITS], output="boxes", distance="error").value == pytest.approx(4)
    assert agreement(Two(1), Two(3), [LOGITS], output=lambda raw: raw["boxes"], distance="error").value == (
        pytest.approx(4)
    )
    assert agreement(Two(1), Two(3), [{"pixels": LOGITS}], forward=lambda model, x: model(x["pixels"])).n == 4


def test_batches_may_be_one_tensor_a_mapping_or_labeled() -> None:
    expected = agreement(Scaled(1), Scaled(2), [LOGITS])
    for batches in (LOGITS, {"x": LOGITS}, [{"x": LOGITS, "labels": torch.arange(4)}], [(LOGITS, torch.arange(4))]):
        found = agreement(Scaled(1), Scaled(2), batches)
        assert (found.kl, found.n) == (expected.kl, 4)


def test_it_is_written_and_read_again() -> None:
    for x in (LOGITS, TOKENS):
        found = agreement(Scaled(1), Scaled(2), [x])
        assert Agreement.from_json(found.to_json()) == found


def test_both_networks_are_only_read() -> None:
    dense, other = users_model(), users_model()
    before = complete_state(dense), complete_state(other)
    agreement(dense, other, [torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(0))])
    assert same((complete_state(dense), complete_state(other)), before)


def test_clear_errors() -> None:
    with pytest.raises(InputError, match="no images to compare on"):
        agreement(Fixed(), Fixed(), [])
    with pytest.raises(InputError, match="no images to compare on"):
        agreement_of_outputs([])
    with pytest.raises(InputError, match=r"put out \(4, 7\) and \(4, 3\)"):
        agreement(Fixed(), nn.Linear(7, 3), [LOGITS])
    with pytest.raises(InputError, match=r"unknown distance 'kl2'; did you mean kl"):
        agreement(Fixed(), Fixed(), [LOGITS], distance="kl2")
    with pytest.raises(InputError, match="the output has no 'logits'"):
        agreement(small_net(), small_net(), [torch.zeros(2, 3, 8, 8)], output="logits")
