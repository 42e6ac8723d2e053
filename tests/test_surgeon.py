"""The surgeon against least squares solved anew for every candidate, and the greedy choice against a heap."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from repairability.algebra.grams import solve_on_support
from repairability.algebra.surgeon import Removal, mask_of, removal_trace, wide_trace
from repairability.errors import InputError


def problem(seed: int, filters: int, inputs: int, samples: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, the Gram of correlated inputs, scales."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.eye(inputs, dtype=torch.float64) + 0.5 * torch.randn(
        inputs, inputs, generator=generator, dtype=torch.float64
    )
    data = torch.randn(samples or 4 * inputs, inputs, generator=generator, dtype=torch.float64) @ mixing
    weights = torch.randn(filters, inputs, generator=generator, dtype=torch.float64)
    return weights, data.T @ data, 0.1 + torch.rand(filters, generator=generator, dtype=torch.float64)


def smooth_problem(seed: int, filters: int, inputs: int, samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Neighbouring inputs correlate: noise, averaged over a window, and a ridge."""
    weights, _, scale = problem(seed, filters, inputs)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(samples, 1, inputs + 8, generator=generator, dtype=torch.float64)
    data = torch.nn.functional.avg_pool1d(noise, 9, stride=1)[:, 0].relu()
    data = data - data.mean(0)
    gram = data.T @ data
    gram.diagonal().add_(1e-3 * gram.diagonal().mean())
    return weights, gram, scale


def supports(mask: Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in mask]


def true_loss(weights: Tensor, gram: Tensor, scale: Tensor, mask: Tensor) -> float:
    """The loss of the refitted group."""
    change = weights - reference.solve_on(gram, weights @ gram, mask)
    return float(((change @ gram) * change).sum(1) @ scale)


@pytest.mark.parametrize("inputs", [1, 2, 5, 8])
@pytest.mark.parametrize("seed", range(6))
def test_the_order_and_the_costs_are_those_of_trying_everything(seed: int, inputs: int) -> None:
    weights, gram, scale = problem(seed, 3, inputs)
    trace = removal_trace(weights, gram, scale, rows_at_once=2)
    for r in range(3):
        order, losses = reference.surgeon(weights[r], gram, range(inputs))
        assert trace.order[r].tolist() == order
        assert (trace.increase[r].cumsum(0) / scale[r]).tolist() == pytest.approx(losses, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_weights_that_are_not_there_come_first_and_cost_nothing(seed: int) -> None:
    weights, gram, scale = problem(seed, 6, 8)
    start = torch.rand(6, 8, generator=torch.Generator().manual_seed(seed)) < 0.6
    start[1], start[2] = False, True
    trace = removal_trace(weights, gram, scale, start=start)
    for r, present in enumerate(supports(start)):
        absent = sorted(set(range(8)) - set(present))
        order, losses = reference.surgeon(weights[r] * start[r], gram, present)
        assert trace.order[r].tolist() == absent + order
        assert trace.forced[r] == len(absent)
        expected = [0.0] * len(absent) + losses
        assert (trace.increase[r].cumsum(0) / scale[r]).tolist() == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert mask_of(trace, int((~start).sum())).equal(start)


def test_filters_of_different_sizes_do_not_disturb_each_other() -> None:
    weights, gram, scale = smooth_problem(12, 9, 48, 300)
    chance = torch.rand(9, 48, generator=torch.Generator().manual_seed(12)).argsort(1)
    start = chance < torch.tensor([48, 14, 40, 37, 0, 30, 48, 17, 36])[:, None]
    together = removal_trace(weights, gram, scale, start=start)
    for r in range(9):
        chosen = start[r].nonzero().flatten()
        alone = removal_trace(weights[r : r + 1, chosen], gram[chosen][:, chosen], scale[r : r + 1])
        assert together.order[r, 48 - len(chosen) :].equal(chosen[alone.order[0]])
        torch.testing.assert_close(together.increase[r, 48 - len(chosen) :], alone.increase[0], rtol=1e-8, atol=0.0)


def test_the_blocks_and_the_fresh_starts_change_nothing() -> None:
    """K = 70 passes through many blocks and three halvings; the plain update of one whole inverse does not."""
    weights, gram, scale = smooth_problem(0, 5, 70, 400)
    trace = removal_trace(weights, gram, scale)
    for r in range(5):
        w, inverse, left = weights[r].clone(), torch.linalg.inv(gram), torch.ones(70, dtype=torch.bool)
        for t in range(70):
            cost = torch.where(left, w.square() / inverse.diagonal(), torch.inf)
            p = int(cost.argmin())
            assert trace.order[r, t] == p
            assert float(trace.increase[r, t] / scale[r]) == pytest.approx(float(cost[p]), rel=1e-6)
            w = w - w[p] / inverse[p, p] * inverse[:, p]
            inverse = inverse - torch.outer(inverse[:, p], inverse[:, p]) / inverse[p, p]
            left[p] = False


def curve_of(removal: Removal, counts: Sequence[int]) -> torch.Tensor:
    """The loss at each count: what the removed steps of all filters added."""
    sums = torch.cat([removal.increase.new_zeros(len(removal.increase), 1), removal.increase.cumsum(1)], 1)
    return torch.stack([sums.gather(1, (~mask_of(removal, n)).sum(1, keepdim=True)).sum() for n in counts])


def test_the_curve_is_the_loss_of_the_refitted_weights() -> None:
    weights, gram, scale = smooth_problem(1, 6, 40, 300)
    trace = removal_trace(weights, gram, scale)
    counts = [0, 1, 60, 150, 200, 239, 240]
    curve = curve_of(trace, counts)
    assert curve.dtype == torch.float64
    for count, loss in zip(counts, curve.tolist(), strict=True):
        assert loss == pytest.approx(true_loss(weights, gram, scale, mask_of(trace, count)), rel=1e-6, abs=1e-9)


def test_equal_costs_go_by_index_then_by_filter() -> None:
    trace = removal_trace(torch.ones(3, 20), torch.eye(20, dtype=torch.float64), torch.ones(3))
    assert trace.order.tolist() == [list(range(20))] * 3
    assert trace.increase.tolist() == [[1.0] * 20] * 3
    gone = ~mask_of(trace, 25)
    assert gone.sum(1).tolist() == [20, 5, 0]
    assert gone[1].tolist() == [True] * 5 + [False] * 15


def test_zero_weights_go_first_for_nothing() -> None:
    weights, gram, scale = problem(3, 4, 12)
    weights[:, [2, 7, 9]] = 0.0
    trace = removal_trace(weights, gram, scale)
    assert trace.order[:, :3].tolist() == [[2, 7, 9]] * 4
    assert trace.increase[:, :3].tolist() == [[0.0] * 3] * 4
    assert (trace.increase[:, 3:] > 0).all()


def test_inputs_that_are_always_zero_go_first() -> None:
    weights, gram, scale = problem(4, 4, 12)
    dead = [0, 5, 11]
    gram[dead], gram[:, dead] = 0.0, 0.0
    gram.diagonal().add_(1e-9 * gram.diagonal().mean())
    trace = removal_trace(weights, gram, scale)
    assert sorted(trace.order[0, :3].tolist()) == dead
    assert (trace.increase[:, :3] < 1e-6 * trace.increase[:, 3:].sum(1, keepdim=True)).all()
    others = [i for i in range(12) if i not in dead]
    alone = removal_trace(weights[:, others], gram[others][:, others], scale)
    assert torch.tensor(others)[alone.order].equal(trace.order[:, 3:])


@pytest.mark.parametrize("ridge", [0.0, 1e-14, 1e-10, 1e-6])
def test_a_gram_of_low_rank_gives_sound_numbers(ridge: float) -> None:
    """20 samples, 64 inputs, each input twice: 44 weights of each filter go for next to nothing."""
    weights, gram, scale = problem(5, 4, 32, samples=20)
    gram, weights = gram.repeat(2, 2), torch.cat([weights, weights.flip(0)], 1)
    gram.diagonal().add_(ridge * gram.diagonal().mean())
    trace = removal_trace(weights, gram, scale)
    assert trace.increase.isfinite().all()
    assert (trace.increase >= 0).all()
    assert trace.order.sort(1).values.equal(torch.arange(64).expand(4, 64))
    whole = float(((weights @ gram) * weights).sum(1) @ scale)
    free, most, everything = curve_of(trace, [4 * 40, 4 * 56, 4 * 64]).tolist()
    assert free < 1e-4 * whole
    assert most == pytest.approx(true_loss(weights, gram, scale, mask_of(trace, 4 * 56)), rel=1e-3)
    assert everything == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_the_last_steps_are_exact_though_the_first_met_an_almost_singular_gram(seed: int) -> None:
    weights, gram, scale = problem(seed, 3, 96, samples=24)
    gram.diagonal().add_(1e-12 * gram.diagonal().mean())
    trace = removal_trace(weights, gram, scale)
    for r in range(3):
        support = sorted(trace.order[r, 88:].tolist())
        fitted = reference.fit_on(weights[r], gram, support)
        order, losses = reference.surgeon(fitted, gram, support)
        assert trace.order[r, 88:].tolist() == order
        assert (trace.increase[r, 88:].cumsum(0) / scale[r]).tolist() == pytest.approx(losses, rel=1e-7)


def test_an_empty_gram_costs_nothing() -> None:
    trace = removal_trace(torch.ones(2, 3), torch.zeros(3, 3), torch.ones(2))
    assert trace.order.tolist() == [[0, 1, 2]] * 2
    assert float(trace.increase.sum()) < 1e-9


def test_a_filter_without_scale_goes_first_and_in_its_own_order() -> None:
    weights, gram, scale = problem(6, 3, 10)
    order = removal_trace(weights, gram, scale).order
    scale[1] = 0.0
    trace = removal_trace(weights, gram, scale)
    assert trace.order.equal(order)
    assert mask_of(trace, 10).sum(1).tolist() == [10, 0, 10]


def test_the_inputs_are_only_read() -> None:
    weights, gram, scale = problem(7, 3, 10)
    before = [x.clone() for x in (weights, gram, scale)]
    removal_trace(weights, gram, scale)
    wide_trace(weights, gram, scale, limit=3)
    solve_on_support(gram, weights, weights > 0)
    assert all(x.equal(y) for x, y in zip(before, (weights, gram, scale), strict=True))


costs = st.integers(0, 4).map(float)  # many ties


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5).flatmap(lambda k: st.lists(st.lists(costs, min_size=k, max_size=k), min_size=1, max_size=5)))
def test_masks_are_those_of_a_heap_exact_in_count_and_nested(increases: list[list[float]]) -> None:
    filters, inputs = len(increases), len(increases[0])
    order = torch.stack([torch.randperm(inputs, generator=torch.Generator().manual_seed(r)) for r in range(filters)])
    trace = Removal(order, torch.tensor(increases, dtype=torch.float64), torch.zeros(filters, dtype=torch.int64))
    before = torch.ones(filters, inputs, dtype=torch.bool)
    curve = curve_of(trace, range(filters * inputs + 1)).tolist()
    for count in range(filters * inputs + 1):
        mask = mask_of(trace, count)
        taken = reference.heap_greedy(increases, count)
        assert (~mask).sum(1).tolist() == taken
        assert all(not mask[r, p] for r, t in enumerate(taken) for p in order[r, :t].tolist())
        assert not (mask & ~before).any()
        assert curve[count] == sum(sum(steps[:t]) for steps, t in zip(increases, taken, strict=True))
        before = mask


def test_forced_steps_come_before_cheaper_ones() -> None:
    order = torch.tensor([[1, 0, 2], [2, 1, 0]])
    trace = Removal(order, torch.tensor([[5.0, 1.0, 2.0], [0.0, 0.5, 9.0]]).double(), torch.tensor([1, 0]))
    assert mask_of(trace, 1).tolist() == [[True, False, True], [True, True, True]]
    assert mask_of(trace, 3).tolist() == [[True, False, True], [True, False, False]]
    assert mask_of(trace, 5).tolist() == [[False, False, False], [True, False, False]]
    assert curve_of(trace, [0, 1, 3, 6]).tolist() == [0.0, 5.0, 5.5, 17.5]


def test_wide_is_exact_where_nothing_is_cut() -> None:
    weights, gram, scale = smooth_problem(2, 5, 30, 200)
    exact, wide = removal_trace(weights, gram, scale), wide_trace(weights, gram, scale, limit=30)
    assert wide.order.equal(exact.order)
    assert wide.increase.equal(exact.increase)
    assert not wide.forced.any()


def test_wide_loses_little_and_knows_what_it_loses() -> None:
    weights, gram, scale = smooth_problem(8, 12, 200, 1500)
    exact = removal_trace(weights, gram, scale)
    wide = wide_trace(weights, gram, scale, limit=60)
    assert wide.order.sort(1).values.equal(torch.arange(200).expand(12, 200))
    assert wide.forced.tolist() == [140] * 12
    assert (wide.increase >= 0).all()
    counts = [12 * 140, 12 * 170, 12 * 180, 12 * 190, 12 * 200]
    ours, best = curve_of(wide, counts), curve_of(exact, counts)
    for count, loss in zip(counts, ours.tolist(), strict=True):
        mask = mask_of(wide, count)
        assert int((~mask).sum()) == count
        assert int(mask.sum(1).max()) <= 60
        assert loss == pytest.approx(true_loss(weights, gram, scale, mask), rel=1e-6)
    ratios = (ours / best).tolist()
    assert ratios[0] <= 3.0  # measured: 2.1, where the cut has just ended and no filter may have more than another
    assert max(ratios[1:]) <= 1.25  # measured: 1.12


def test_wide_forgets_no_tie_and_no_empty_filter() -> None:
    trace = wide_trace(torch.ones(2, 9), torch.eye(9, dtype=torch.float64), torch.ones(2), limit=2)
    assert trace.order.tolist() == [list(range(9))] * 2
    assert trace.increase.tolist() == [[1.0] * 9] * 2
    empty = wide_trace(torch.zeros(2, 9), torch.eye(9, dtype=torch.float64), torch.ones(2), limit=2)
    assert empty.order.tolist() == [list(range(9))] * 2
    assert not empty.increase.any()


def test_what_does_not_fit_is_refused() -> None:
    weights, gram, scale = problem(11, 3, 4)
    for bad in (
        (weights[:, :3], gram, scale),
        (weights, gram, scale[:2]),
        (weights, gram * torch.nan, scale),
        (weights, gram, -scale),
    ):
        with pytest.raises(InputError):
            removal_trace(*bad)
    with pytest.raises(InputError):
        removal_trace(weights, gram, scale, start=torch.ones(3, 4))
    with pytest.raises(InputError):
        wide_trace(weights, gram, scale, limit=0)
    with pytest.raises(InputError):
        solve_on_support(gram, weights[:, :3], torch.ones(3, 3, dtype=torch.bool))
    trace = removal_trace(weights, gram, scale)
    with pytest.raises(InputError):
        mask_of(trace, 13)
