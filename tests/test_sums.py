from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from repairability import InputError
from repairability.algebra.scratch import Scratch
from repairability.algebra.sums import EPS, ChannelSums

LEVELS, SAMPLES, CHANNELS, POSITIONS = 3, 10, 4, 6


def activations(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Float32, with a mean, a dead channel and a constant one."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(SAMPLES, CHANNELS, POSITIONS, generator=generator) + 3
    b = a + torch.randn(LEVELS, SAMPLES, CHANNELS, POSITIONS, generator=generator)
    a[:, 1] = 0
    b[:, :, 2] = 1.25
    return a, b


SUMS = ("plain", "weighed", "wp")


def summed(a: Tensor, b: Tensor, **options: Tensor) -> ChannelSums:
    sums = ChannelSums(LEVELS, CHANNELS, **options)
    sums.update(a, b)
    return sums


def close(one: ChannelSums, two: ChannelSums, rtol: float) -> None:
    assert (one.samples, one.count) == (two.samples, two.count)
    for name in SUMS:
        torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=rtol, atol=1e-12)


@settings(deadline=None)
@given(st.lists(st.integers(1, SAMPLES - 1), max_size=4), st.permutations(range(SAMPLES)))
def test_any_split_and_order_agrees(cuts: list[int], order: list[int]) -> None:
    a, b = activations()
    whole = summed(a, b)
    edges = [0, *sorted(set(cuts)), SAMPLES]
    parts = ChannelSums(LEVELS, CHANNELS)
    for start, end in itertools.pairwise(edges):
        index = order[start:end]
        parts.update(a[index], b[:, index])
    close(parts, whole, 1e-9)
    torch.testing.assert_close(parts.distance(), whole.distance(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("samples", [1, SAMPLES])
@pytest.mark.parametrize("widths", [[1] * POSITIONS, [4, 2], [POSITIONS]])
def test_the_positions_may_come_in_parts(samples: int, widths: list[int]) -> None:
    a, b = (x[..., :samples, :, :] for x in activations())
    parts, scratch = ChannelSums(LEVELS, CHANNELS), Scratch()
    parts.update(a, iter(b.split(widths, dim=-1)), scratch)
    parts.update(a + 1, iter(b.split(widths, dim=-1)), scratch)
    whole = summed(a, b)
    whole.update(a + 1, b)
    close(parts, whole, 1e-9)


def test_sums_of_several_add_up() -> None:
    a, b = activations()
    scale, shift = torch.tensor([0.5, 2.0, -1.0, 0.0]), torch.tensor([0.0, 1.0, -2.0, 3.0])
    whole = summed(a, b, scale=scale, shift=shift)
    total = whole.empty()
    assert (total.samples, total.count) == (0, 0)
    for part in (slice(0, 3), slice(3, SAMPLES)):
        own = whole.empty()
        own.update(a[part], b[:, part])
        total.add(own)
    close(total, whole, 1e-9)


def test_moments_are_pooled_and_biased() -> None:
    a, b = activations()
    sums = summed(a, b)
    torch.testing.assert_close(sums.dense_moments().mean, a.double().mean((0, 2)))
    torch.testing.assert_close(sums.dense_moments().var, a.double().var((0, 2), unbiased=False))
    torch.testing.assert_close(sums.pruned_moments().var, b.double().var((1, 3), unbiased=False))
    torch.testing.assert_close(sums.cross_moment(), (a * b.double()).mean((1, 3)))
    assert sums.dense_moments().count == SAMPLES * POSITIONS
    assert (sums.pruned_moments().var[:, 2] == 0).all()  # constant: exactly 0, not rounding


@given(st.floats(-2, 2), st.floats(-2, 2))
def test_distance_of_any_affine_repair(gain: float, offset: float) -> None:
    a, b = activations()
    a64, b64 = a.double(), b.double()
    error = (a64 - gain * b64 - offset).square().sum(-1) / (a64.square().sum(-1) + EPS)
    torch.testing.assert_close(summed(a, b).distance(gain, offset), error.mean((1, 2)), rtol=1e-9, atol=1e-12)


def test_observed_behind_an_affine_map() -> None:
    a, b = activations()
    scale, shift = torch.tensor([1.5, -2.0, 0.0, 0.3]), torch.tensor([0.1, 0.0, 2.0, -1.0])
    sums = summed(a, b, scale=scale, shift=shift)
    a64, b64 = (scale[:, None].double() * x.double() + shift[:, None].double() for x in (a, b))
    error = (a64 - b64).square().sum(-1) / (a64.square().sum(-1) + EPS)
    torch.testing.assert_close(sums.distance(), error.mean((1, 2)))
    close_moments = sums.dense_moments()
    torch.testing.assert_close(close_moments.mean, a.double().mean((0, 2)))  # of the layer itself


def test_nothing_grows_with_the_images() -> None:
    a, b = activations()
    sums = summed(a, b)
    before = [getattr(sums, name).shape for name in SUMS]
    sums.update(a, b)
    assert [getattr(sums, name).shape for name in SUMS] == before
    assert sums.weighed.dtype == torch.float64


def test_identical_activations_have_distance_zero() -> None:
    a, _ = activations()
    assert (summed(a, a.expand(LEVELS, -1, -1, -1)).distance() < 1e-15).all()


def test_clear_errors() -> None:
    a, b = activations()
    with pytest.raises(InputError, match=r"dense activations must be \[N, 4, P\]"):
        summed(a[:, :2], b)
    with pytest.raises(InputError, match="pruned activations must be"):
        summed(a, b[:2])
    with pytest.raises(InputError, match="not 4 positions"):
        ChannelSums(LEVELS, CHANNELS).update(a, iter([b[..., :4]]))
