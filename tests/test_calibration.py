from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from networks import small_net
from repairability import CalibrationSet, InputError, diagnose

IMAGES = torch.randn(300, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_tensor_loader_and_iterable_give_the_same_images() -> None:
    labels = torch.zeros(300)
    sources = [
        IMAGES,
        DataLoader(TensorDataset(IMAGES, labels), batch_size=37),
        [(part, "label") for part in IMAGES.split(50)],
        ([part, torch.zeros(len(part), dtype=torch.int64)] for part in IMAGES.split(11)),
    ]
    sets = [CalibrationSet.read(source, count=100, model=small_net()) for source in sources]
    assert len({x.fingerprint for x in sets}) == 1
    assert all(len(x) == 300 for x in sets)
    assert all(torch.equal(x.held.batches[0], IMAGES) for x in sets)


class Named(nn.Module):
    """Takes its images by name, and may be given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(pixels)
        return {"logits": logits} if labels is None else {"loss": logits.sum(), "logits": logits}


def test_mappings_give_the_same_images_however_they_are_cut_and_labeled() -> None:
    labels = torch.zeros(300, dtype=torch.int64)
    sources = [
        {"pixels": IMAGES},
        ({"pixels": part} for part in IMAGES.split(11)),
        [{"pixels": IMAGES[:200], "labels": labels[:200]}, {"pixels": IMAGES[200:], "labels": labels[200:]}],
        [UserDict(pixels=IMAGES, path="here")],
    ]
    sets = [CalibrationSet.read(source, count=100, model=Named()) for source in sources]
    assert len({x.fingerprint for x in sets}) == 1
    assert all(len(x) == 300 for x in sets)
    assert all(torch.equal(x.held.batches[0]["pixels"], IMAGES) for x in sets)
    whole = CalibrationSet.read(sources[2], count=100)  # without a model, or with a forward, a batch is kept whole
    assert torch.equal(whole.held.batches[0]["labels"], labels)
    forward = CalibrationSet.read(sources[2], count=100, model=Named(), forward=lambda model, batch: model(**batch))
    assert forward.fingerprint == whole.fingerprint != sets[0].fingerprint


def test_no_more_is_read_than_needed() -> None:
    def endless() -> Iterator[Tensor]:
        for i in range(100):
            assert i < 3, "read too far"
            yield IMAGES[:50]

    assert len(CalibrationSet.read(endless(), count=10, most=120)) == 120


def test_a_seed_draws_and_its_fingerprint_tells() -> None:
    first, again, other = (CalibrationSet.read(IMAGES, count=20, most=40, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.held.batches[0], again.held.batches[0])
    assert first.fingerprint == again.fingerprint != other.fingerprint
    from_parts = CalibrationSet.read(list(IMAGES.split(7)), count=20, most=40, seed=1)
    assert torch.equal(first.held.batches[0], from_parts.held.batches[0])
    assert first.fingerprint != CalibrationSet(first.held.batches[0], 21).fingerprint
    assert first.fingerprint == CalibrationSet(first.held, 20).fingerprint


def test_batches_follow_the_model() -> None:
    model = small_net().double()
    found = list(CalibrationSet(IMAGES, count=100, batch_size=64).batches(model))
    assert [len(x) for x in found] == [64, 36]
    assert found[0].dtype == torch.float64


def test_recalibration_takes_the_images_after_the_statistics_and_cycles() -> None:
    calibration = CalibrationSet(IMAGES, count=100)
    assert calibration.recalibration_cycles()
    batches = list(calibration.recalibration(small_net(), 3, 100))
    assert torch.equal(torch.cat(batches[:2]), IMAGES[100:])
    assert torch.equal(batches[2], IMAGES[100:200])
    alone = CalibrationSet(IMAGES[:100], count=100)
    assert torch.equal(next(alone.recalibration(small_net(), 1, 100)), IMAGES[:100])
    assert not calibration.recalibration_cycles(2, 100)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (IMAGES[:1].expand(60, -1, -1, -1), "the 60 images are all the same"),
        (torch.zeros(60, 3, 8, 8), "the 60 images are all the same"),
        ([], "no images: the iterable is empty"),
        (iter(()), "no images: the iterable is empty"),
        (IMAGES.mul(255).to(torch.uint8), "must be floating point, normalised .*uint8"),
        (torch.zeros(5), r"must be a batch \[n, ...\], not a tensor of shape \(5,\)"),
        ([torch.zeros(128)], r"must come in batches.*not a tensor of shape \(128,\)"),
        (["a.png"], "must come in batches.*not str"),
        ("folder", "must be a tensor or an iterable of batches, not str"),
        (3, "must be a tensor or an iterable of batches, not int"),
        ([(IMAGES[0], 3)], "look like single samples with a label; give batches: .*DataLoader"),
        ([{"path": "a.png"}], "must come in batches.*not {path: str}"),
        ([(IMAGES, {"a", "b"})], "a tuple, list or mapping of tensors; this one holds a set"),
    ],
)
def test_clear_errors(source: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CalibrationSet.read(source)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_images_that_are_no_numbers(value: float) -> None:
    images = IMAGES.clone()
    images[7, 0, 0, 0] = value
    with pytest.raises(InputError, match="image 7 holds nan or inf"):
        CalibrationSet.read(images)


def test_a_shape_the_model_rejects() -> None:
    with pytest.raises(InputError, match=r"Sequential does not take a batch of shape \(4, 4, 8, 8\).*4 channels"):
        diagnose(small_net(), torch.randn(128, 4, 8, 8))


def test_batches_of_different_shapes_stay_apart() -> None:
    """Sequences of several lengths, images of several sizes: no batch mixes them, and none is lost."""
    parts = [IMAGES[:50], IMAGES[50:90], IMAGES[:60, :, :6], IMAGES[100:130]]
    mixed = CalibrationSet.read([*parts, IMAGES[:98]], count=120, batch_size=40)
    assert [len(x) for x in mixed.held.batches] == [90, 60, 128]
    assert [tuple(x.shape) for x in mixed.batches(small_net())] == [
        *((40, 3, 8, 8), (40, 3, 8, 8), (10, 3, 8, 8)),
        (30, 3, 6, 8),
    ]
    assert mixed.batch_count == 4
    assert [tuple(x.shape) for x in mixed.recalibration(small_net(), 3, 40)] == [
        *((30, 3, 6, 8), (40, 3, 8, 8), (40, 3, 8, 8))
    ]
    few, held_out = CalibrationSet.read(parts, count=60).split(40)
    assert (len(few), len(held_out)) == (140, 40)
    assert [len(x) for x in held_out.batches] == [10, 30]
    assert mixed.fingerprint != CalibrationSet.read(parts[::-1], count=120).fingerprint
    diagnose(small_net(), mixed)


def test_impossible_sizes() -> None:
    with pytest.raises(InputError, match="count and batch_size must be at least 1"):
        CalibrationSet(IMAGES, count=0)


def test_fewer_images_than_the_statistics_take_are_all_taken_with_a_notice() -> None:
    with pytest.warns(UserWarning, match="the statistics take 128 images; they take the 60 that there are"):
        few = CalibrationSet.read(IMAGES[:60])
    assert few.count == len(few) == 60
    assert few.fingerprint == CalibrationSet(IMAGES[:60], count=60).fingerprint


def test_a_handful_behind_the_statistics_is_not_recalibrated_on_alone() -> None:
    """With 129 images BatchNorm would learn from one."""
    for more in (0, 1, 127):
        calibration = CalibrationSet(IMAGES[: 128 + more])
        assert len(calibration.recalibration_samples) == 128 + more
    assert len(CalibrationSet(IMAGES[:256]).recalibration_samples) == 128


def test_a_tuple_of_batches_is_many_and_a_tuple_of_inputs_is_one() -> None:
    split = IMAGES.split(128)
    assert isinstance(split, tuple)
    assert len(CalibrationSet.read(split, model=small_net())) == len(CalibrationSet.read(split)) == 300
    both = (IMAGES[:, :, 0, 0], IMAGES[:, :, 1, 1])
    assert len(CalibrationSet.read(both, model=Two())) == 300


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y
