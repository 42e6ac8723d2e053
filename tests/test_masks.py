from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn
from torch.nn.utils import prune

import reference
from networks import Shared, small_net
from repairability import Allocation, InputError, Masks, allocate, make_masks, prunable_layers
from repairability.masks import apply_masks_, magnitude_levels, magnitude_mask

tied = hnp.arrays(np.float32, st.integers(1, 60), elements=st.sampled_from([0.0, 0.5, 1.0, 2.0]))
smooth = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(0, 1, width=32))
constant = st.integers(1, 60).map(lambda n: np.full(n, 0.25, dtype=np.float32))


@given(st.one_of(tied, smooth, constant), st.data())
def test_counts_are_exact_whatever_the_ties(magnitudes: np.ndarray, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, magnitudes.size))
    kept = magnitude_mask(magnitudes, count)
    assert kept.sum() == magnitudes.size - count
    assert kept.tolist() == reference.mask(magnitudes.tolist(), count)


@given(st.one_of(tied, smooth, constant), st.data())
def test_levels_are_the_masks_and_nest(magnitudes: np.ndarray, data: st.DataObject) -> None:
    counts = sorted(data.draw(st.lists(st.integers(0, magnitudes.size), min_size=1, max_size=8)))
    index, last = magnitude_levels(magnitudes, counts)
    previous = np.ones(magnitudes.size, dtype=bool)
    for k, count in enumerate(counts):
        kept = np.zeros(magnitudes.size, dtype=bool)
        kept[index[last >= k]] = True
        np.testing.assert_array_equal(kept, magnitude_mask(magnitudes, count))
        assert not (kept & ~previous).any()
        previous = kept


def test_levels_at_size() -> None:
    magnitudes = np.abs(np.random.default_rng(0).normal(size=300_000)).astype(np.float16).astype(np.float32)
    counts = [0, 1, 210_000, 210_000, 255_000, 299_999, 300_000]
    _, last = magnitude_levels(magnitudes, counts)
    assert [int((last >= k).sum()) for k in range(len(counts))] == [300_000 - c for c in counts]


def test_make_masks_prunes_what_the_allocation_says() -> None:
    net = small_net()
    plan = allocate(net, sparsity=0.9, rule="lamp")
    masks = make_masks(net, plan)
    for name in plan:
        assert masks.kept(name) == plan.totals[name] - plan.pruned(name)
        weight, mask = net.get_parameter(f"{name}.weight").detach().abs(), masks[name]
        assert weight[~mask].max() <= weight[mask].min()
    assert "2" in str(masks)


def test_make_masks_reads_only() -> None:
    net = small_net()
    before = copy.deepcopy(net.state_dict())
    make_masks(net, allocate(net, sparsity=0.9, rule="uniform"))
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_apply_masks_writes_exact_zeros_and_nothing_else() -> None:
    net = small_net()
    masks = make_masks(net, allocate(net, sparsity=0.8, rule="uniform"))
    pruned = copy.deepcopy(net)
    apply_masks_(pruned, masks)
    for key, value in pruned.state_dict().items():
        dense, mask = net.state_dict()[key], masks.get(key.removesuffix(".weight")) if key.endswith("weight") else None
        if mask is None:
            assert torch.equal(value, dense)
        else:
            assert torch.equal(value[mask], dense[mask])
            assert (value[~mask] == 0).all()
            assert not torch.signbit(value[~mask]).any()


@pytest.mark.usefixtures("quiet")
def test_a_shared_weight_is_masked_once() -> None:
    net = Shared()
    layers = prunable_layers(net, only=("a", "b"))  # which must name it
    apply_masks_(net, make_masks(net, allocate(layers, sparsity=0.5, rule="uniform")))
    assert int((net.b_tied.weight == 0).sum()) == 72


@pytest.mark.usefixtures("quiet")
def test_masks_go_on_top_of_torchs_own_or_are_refused() -> None:
    net = small_net()
    prune.l1_unstructured(net[2], "weight", 0.5)
    plan = allocate(net, sparsity=0.9, rule="uniform")
    with contextlib.suppress(InputError):
        apply_masks_(net, make_masks(net, plan))
        net(torch.randn(1, 3, 8, 8))
        assert int((net[2].weight == 0).sum()) == plan.pruned("2")


@pytest.mark.parametrize("value", [0.0, 0.25])
def test_constant_weights_lose_the_lower_indices(value: float) -> None:
    net = small_net()
    nn.init.constant_(net.get_parameter("4.weight"), value)
    mask = make_masks(net, allocate(net, sparsity=0.75, rule="uniform"))["4"].flatten()
    assert not mask[:192].any()
    assert mask[192:].all()


def test_clear_errors() -> None:
    net = small_net()
    with pytest.raises(InputError, match="unknown layer '9'"):
        make_masks(net, Allocation({"9": 0.5}, {"9": 4}, 4))
    with pytest.raises(InputError, match="layer '2' has 1152 weights, the allocation was made for one with 7"):
        make_masks(net, Allocation({"2": 0.5}, {"2": 7}, 7))
    with pytest.raises(InputError, match="unknown layer 'x'"):
        apply_masks_(net, Masks({"x": torch.ones(3, dtype=torch.bool)}))
    with pytest.raises(InputError, match="has shape \\(3,\\)"):
        apply_masks_(net, Masks({"2": torch.ones(3, dtype=torch.bool)}))
    with pytest.raises(InputError, match="must be bool"):
        Masks({"2": torch.ones(3)})
