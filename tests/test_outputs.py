from __future__ import annotations

from collections import OrderedDict, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from repairability import InputError
from repairability.network.outputs import is_logits, picked

IDS, LOGITS, HIDDEN = torch.arange(4), torch.randn(4, 5), torch.randn(4, 3, 7)
Pair = namedtuple("Pair", ("hidden", "logits"))


class ModelOutput(OrderedDict[str, Any]):
    """As in transformers: a mapping of its own class."""


@pytest.mark.parametrize(
    ("raw", "output", "expected"),
    [
        (LOGITS, None, LOGITS),
        ((IDS, HIDDEN, LOGITS), None, HIDDEN),  # the first that can be compared
        ([LOGITS, HIDDEN], None, LOGITS),
        ({"loss": torch.tensor(1.0), "logits": LOGITS}, None, LOGITS),
        ({"ids": IDS, "hidden": HIDDEN}, None, HIDDEN),
        (ModelOutput(hidden=HIDDEN, logits=LOGITS), None, LOGITS),
        (ModelOutput(hidden=HIDDEN, logits=LOGITS), "hidden", HIDDEN),
        ({"out": HIDDEN, "aux": LOGITS}, "aux", LOGITS),
        (Pair(HIDDEN, LOGITS), "logits", LOGITS),
        (SimpleNamespace(sample=HIDDEN), "sample", HIDDEN),
        ((HIDDEN, LOGITS), 1, LOGITS),
        ((HIDDEN, LOGITS), -2, HIDDEN),
        (((HIDDEN,), (LOGITS,)), lambda raw: raw[1][0], LOGITS),
    ],
)
def test_one_tensor_is_picked(raw: Any, output: Any, expected: torch.Tensor) -> None:
    assert torch.equal(picked(raw, output), expected)


def test_it_is_compared_in_full_precision() -> None:
    assert picked(LOGITS.bfloat16()).dtype == torch.float32
    assert picked(LOGITS.half()).dtype == torch.float32
    assert picked(LOGITS.double()).dtype == torch.float64


def test_logits_are_known_by_their_name_or_their_form() -> None:
    sequence = torch.randn(2, 3, 5)
    assert is_logits(LOGITS, None, LOGITS)
    assert is_logits({"logits": sequence}, None, sequence)
    assert is_logits({"logits": sequence, "hidden": HIDDEN}, "logits", sequence)
    assert not is_logits(sequence, None, sequence)
    assert not is_logits({"logits": LOGITS, "hidden": HIDDEN}, "hidden", HIDDEN)
    column = torch.randn(4, 1)
    assert not is_logits(column, None, column)  # of one class any two networks would agree
    assert not is_logits({"logits": column}, None, column)


@pytest.mark.parametrize(
    ("raw", "output", "message"),
    [
        (IDS, None, "must be a floating-point tensor .*output= picks a part"),
        (torch.tensor(1.0), None, r"must be a floating-point tensor \[n, ...\], .*float32 \(\)"),
        ("text", None, "the model puts out a str"),
        ({}, None, "a mapping of nothing"),
        ((), None, "a tuple of 0: nothing"),
        ({"hidden": HIDDEN}, "logits", "the output has no 'logits'; it is a mapping of hidden"),
        (LOGITS, "logits", "the output has no 'logits'; it is a Tensor"),
        ((LOGITS,), 1, "the output has no part 1; it is a tuple of 1: Tensor"),
        (LOGITS, 0, "the output has no part 0; it is a Tensor"),
        ((LOGITS,), lambda raw: raw, "the model puts out a tuple of 1: Tensor"),
    ],
)
def test_clear_errors(raw: Any, output: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        picked(raw, output)
