from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from networks import small_net
from repairability import CalibrationSet, InputError
from repairability.network.batches import Reached, called, described, plain, run, sample_count, taken, to_model
from repairability.network.samples import Samples

N = 10
X, IDS, LABELS = torch.randn(N, 4), torch.arange(10 * N).view(N, 10), torch.arange(N)
MASK = torch.ones(N, 10, dtype=torch.bool)
TABLE = torch.randn(7, 2)  # belongs to all samples
IMAGES = [torch.full((3, 4 + i, 5), float(i)) for i in range(N)]
Pair = namedtuple("Pair", ("first", "second"))

TREES: dict[str, Any] = {
    "tensor": X,
    "tuple": (X, IDS),
    "mapping": {"attention_mask": MASK, "input_ids": IDS, "table": TABLE, "scale": 2.0, "nothing": None},
    "nested": {"inputs": [X, (IDS, {"mask": MASK})], "name": "text"},
    "named tuple": Pair(X, IDS),
    "images": IMAGES,
    "images and targets": (IMAGES, [{"boxes": torch.full((2, 4), float(i))} for i in range(N)]),
}
"""Trees of N samples."""


def at(tree: Any, index: list[int]) -> Any:
    """Plainly these samples of a tree."""
    if isinstance(tree, Tensor):
        return tree[index] if len(tree) == N else tree
    if isinstance(tree, dict):
        return {name: at(value, index) for name, value in tree.items()}
    if isinstance(tree, Pair):
        return Pair(*(at(value, index) for value in tree))
    if isinstance(tree, list) and len(tree) == N:
        return [tree[i] for i in index]
    return type(tree)(at(value, index) for value in tree) if isinstance(tree, (list, tuple)) else tree


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(x, y) for x, y in zip(one, other, strict=True))
    return bool(one == other)


# --- trees ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_any_tree_is_counted_cut_and_cycled(tree: Any) -> None:
    samples = Samples((tree,))
    assert sample_count(tree) == len(samples) == N
    assert same(list(samples.split(4)), [at(tree, [0, 1, 2, 3]), at(tree, [4, 5, 6, 7]), at(tree, [8, 9])])
    assert same(list(samples.split(N)), [tree])
    assert same(samples[2:5].batches, (at(tree, [2, 3, 4]),))
    assert same(samples[-3:].batches, (at(tree, [7, 8, 9]),))
    assert len(samples[4:4]) == 0
    assert same(samples.drawn([3, 0, 9]).batches, (at(tree, [3, 0, 9]),))
    rounds = ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1])
    assert same(list(samples.cycled(3, 4)), [at(tree, index) for index in rounds])


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_parts_are_joined_to_what_they_were_of(tree: Any, size: int) -> None:
    """Whatever the size of the parts; images with targets stay as they came."""
    parts = list(Samples((tree,)).split(size))
    joined = Samples.of(parts)
    assert len(joined) == N
    assert same(list(joined.split(size)), parts)
    if tree is not TREES["images and targets"]:
        assert same(joined.batches, (tree,))


def test_channels_are_no_samples() -> None:
    """Three images of three channels with what belongs to them: their first axis is not the samples'."""
    batches = [([torch.full((3, 4, 5), float(i)) for i in range(start, start + 3)], None) for start in (0, 3)]
    samples = Samples.of(batches)
    assert len(samples) == 6
    assert [tuple(image.shape) for batch in samples.batches for image in batch[0]] == [(3, 4, 5)] * 6


def test_images_may_stand_in_a_tuple() -> None:
    """As torchvision's own collate function for detectors gives them: tuple(zip(*batch))."""
    images = [torch.randn(3, 8, 8) for _ in range(5)]
    batch = tuple(zip(*((image, {"boxes": torch.zeros(1, 4)}) for image in images), strict=True))
    assert sample_count(batch) == 5
    found = called(Takes("images, targets=None"), batch)["images"]
    assert same(list(found), images)


def test_what_differs_in_form_stays_apart_and_in_order() -> None:
    short, long = torch.zeros(4, 5), torch.ones(3, 7)
    samples = Samples.of([short, short, long, short])
    assert [tuple(x.shape) for x in samples.batches] == [(8, 5), (3, 7), (4, 5)]
    assert len(samples) == 15
    assert [tuple(x.shape) for x in samples.split(6)] == [(6, 5), (2, 5), (3, 7), (4, 5)]
    assert [tuple(x.shape) for x in samples[7:12].batches] == [(1, 5), (3, 7), (1, 5)]
    assert [tuple(x.shape) for x in samples.drawn([0, 9, 10, 14]).batches] == [(1, 5), (2, 7), (1, 5)]
    assert [tuple(x.shape) for x in samples.cycled(5, 6)] == [(6, 5), (2, 5), (3, 7), (4, 5), (6, 5)]
    for one, other in (
        ({"x": short}, {"y": short}),
        ({"x": short, "k": 1}, {"x": short, "k": 2}),  # what belongs to all of them
        ((short, torch.zeros(2)), (short, torch.ones(2))),
        (short, short.double()),
    ):
        assert len(Samples.of([one, one]).batches) == 1
        assert len(Samples.of([one, other]).batches) == 2


def test_a_batch_of_any_library_becomes_plain() -> None:
    given = UserDict(ids=IDS, more=UserDict(x=X.requires_grad_()))  # transformers' BatchEncoding is one
    found = plain(given)
    assert type(found) is type(found["more"]) is dict
    assert not found["more"]["x"].requires_grad
    assert isinstance(plain(Pair(X, "text")), Pair)
    assert plain([None, True, 1, 2.0, "text"]) == [None, True, 1, 2.0, "text"]
    with pytest.raises(InputError, match="a batch is a tensor, or .*this one holds a set"):
        plain((X, {1, 2}))
    X.requires_grad_(False)


def test_a_batch_must_hold_something() -> None:
    for empty in ((), {}, {"scale": torch.tensor(2.0)}, "text"):
        with pytest.raises(InputError, match="a batch must hold a tensor"):
            sample_count(empty)


# --- the way into a model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_ids_and_masks_stay_what_they_are(dtype: torch.dtype) -> None:
    """bfloat16 has eight bits for a number: 257 would become 256."""
    ids = torch.tensor([[257, 1001, 30001]])
    moved = to_model({"mask": MASK, "ids": ids, "x": X, "more": (X.half(), 3, None)}, small_net().to(dtype))
    assert moved["ids"].tolist() == [[257, 1001, 30001]]
    assert moved["ids"].dtype == torch.int64
    assert moved["mask"].dtype == torch.bool
    assert moved["x"].dtype == moved["more"][0].dtype == dtype
    assert moved["more"][1:] == (3, None)
    assert to_model(X, nn.ReLU()) is X


class Takes(nn.Module):
    """A forward of these parameters, written as text."""

    def __init__(self, signature: str) -> None:
        super().__init__()
        space: dict[str, Any] = {}
        exec(f"def forward(self, {signature}): return {{k: v for k, v in locals().items() if k != 'self'}}", space)
        self.forward = space["forward"].__get__(self)


@pytest.mark.parametrize(
    ("signature", "batch", "names"),
    [
        ("x", X, ["x"]),
        ("x", (X, LABELS), ["x"]),
        ("x", [X, LABELS], ["x"]),
        ("x", (X, "path", 3), ["x"]),
        ("x", (X, LABELS.float()), ["x"]),  # the signature takes no more
        ("x, mask=None", (X, LABELS), ["x"]),  # one whole number a sample: labels
        ("x, mask=None", (X, MASK), ["x", "mask"]),
        ("x, mask=None", (X, MASK, LABELS), ["x", "mask"]),
        ("x, mask", (X, LABELS), ["x", "mask"]),  # it cannot do without
        ("x, y", (X, IDS), ["x", "y"]),
        ("x, y=None", (X, IDS), ["x"]),  # labels by their name
        ("x, targets=None", (X, [{"boxes": X}]), ["x"]),
        ("ids, mask=None, labels=None", (IDS, MASK, IDS), ["ids", "mask"]),
        ("x, labels=None", {"x": X, "labels": LABELS}, ["x"]),
        ("x, labels", {"x": X, "labels": LABELS}, ["x", "labels"]),
        ("x", {"x": X, "path": "here", "labels": LABELS}, ["x"]),
        ("input_ids, attention_mask=None", {"attention_mask": MASK, "input_ids": IDS}, ["input_ids", "attention_mask"]),
        ("x, **kwargs", {"x": X, "label": LABELS}, ["x"]),
        ("x", IMAGES, ["x"]),
        ("images, targets=None", (IMAGES, [{"boxes": X}] * N), ["images"]),
    ],
)
def test_a_model_is_given_what_it_takes(signature: str, batch: Any, names: list[str]) -> None:
    model = Takes(signature)
    given = {k: v for k, v in called(model, batch).items() if v is not None and k != "kwargs"}
    assert list(given) == names
    again = called(model, taken(model, batch))  # what is left of it goes the same way
    assert same({k: v for k, v in again.items() if v is not None and k != "kwargs"}, given)
    if isinstance(batch, dict):
        assert same(given, {name: batch[name] for name in names})
    else:
        items = batch if isinstance(batch, (tuple, list)) and batch is not IMAGES else [batch]
        assert same(list(given.values()), list(items[: len(names)]))


def test_more_of_a_mapping_goes_by_its_keywords() -> None:
    found = called(Takes("x, **kwargs"), {"x": X, "mask": MASK, "labels": LABELS})
    assert list(found["kwargs"]) == ["mask"]


def test_a_forward_of_ones_own_gets_the_whole_batch() -> None:
    batch = {"pixels": X, "labels": LABELS}
    assert called(nn.ReLU(), batch, lambda model, given: (model(given["pixels"]), given["labels"]))[1].equal(LABELS)


def test_the_same_batch_gives_the_same_output() -> None:
    model = nn.Dropout().train()
    assert torch.equal(run(model, X), run(model, X))
    assert not torch.equal(called(model, X), called(model, X))


def test_who_has_seen_enough_ends_the_pass() -> None:
    def enough(*_: object) -> Tensor:
        raise Reached

    assert called(nn.ReLU(), X, enough) is None


class Own(Exception):
    """A model's own error."""


@pytest.mark.parametrize("error", [ValueError("too\nmany"), KeyError("pixels"), Own(), AssertionError()])
def test_whatever_a_model_raises_names_it_and_the_batch(error: Exception) -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise error

    with pytest.raises(InputError, match=rf"Failing does not take a batch of .*\(10, 4\).*{type(error).__name__}"):
        called(Failing(), X)


def test_a_batch_in_words() -> None:
    assert described(X) == "shape (10, 4) (torch.float32)"
    assert described({"ids": IDS, "n": 3}) == "{ids: shape (10, 10) (torch.int64), n: int}"
    assert described([X] * 6).count("shape") == 4


def test_labels_of_many_numbers_are_no_images() -> None:
    """A loader's last batch may be small: [x, y] of two signals [2, C, T] each are still inputs and targets."""
    x, y = torch.randn(34, 3, 8), torch.randn(34, 3, 8)
    model = nn.Conv1d(3, 3, 3)
    found = CalibrationSet.read(DataLoader(TensorDataset(x, y), batch_size=32), count=34, model=model)
    assert len(found) == 34
    assert torch.equal(torch.cat([found.run(nn.Identity(), batch) for batch in found.batches(model)]), x)
