"""Hand-made curves with a known answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairability import Allocation, Curves, InputError
from repairability.transition import (
    consensus,
    find_band,
    find_core,
    longest_run,
    objective,
    overlap,
    runs,
    sparsities_per_layer,
    transition_scores,
)

SWEEP = [0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96]
NAN = math.nan


def curves() -> Curves:
    return Curves.on_grid("rr", [0.5, 0.9], {"a": [0.8, 1.2], "b": [0.4, 0.6]})


def test_the_objective_is_the_mean_of_rr() -> None:
    assert objective(curves(), {"a": 0.5, "b": 0.9}) == pytest.approx((0.8 + 0.6) / 2)
    assert objective(curves(), {"a": 0.0, "b": 0.9}) == pytest.approx((1 + 0.6) / 2)
    plan = Allocation({"a": 0.5, "b": 0.5}, {"a": 10, "b": 10}, 20)
    assert objective(curves(), plan) == pytest.approx(0.6)


def test_interpolation_is_linear_and_anchored_at_one() -> None:
    assert objective(curves(), {"a": 0.7, "b": 0.25}, interpolate=True) == pytest.approx((1.0 + 0.7) / 2)
    with pytest.raises(InputError, match="was not measured at 0.7"):
        objective(curves(), {"a": 0.7, "b": 0.5})
    with pytest.raises(InputError, match="above the grid's top, 0.9"):
        objective(curves(), {"a": 0.95, "b": 0.5}, interpolate=True)
    with pytest.raises(InputError, match="unknown layer 'c'"):
        objective(curves(), {"c": 0.5})


def test_scores_are_the_formulae() -> None:
    scores = transition_scores([1.2, 1.4, 1.6], [1.0, 1.1, 1.6], at_low=1.0, at_high=1.2)
    np.testing.assert_allclose(scores["G"], [0.2, 0.3, 0.0], atol=1e-12)
    np.testing.assert_allclose(scores["T"], [0, 0.5, 1], atol=1e-6)  # clipped at the upper end
    np.testing.assert_allclose(scores["CTS"], [0, 0.15, 0], atol=1e-6)
    np.testing.assert_allclose(scores["smoothed"], [0.075, 0.05, 0.075], atol=1e-6)


def test_stress_is_clipped_at_the_lower_end_too_and_zero_without_a_rise() -> None:
    assert transition_scores([1.0], [0.5], at_low=1.0, at_high=2.0)["T"].tolist() == [0]
    assert transition_scores([1.0, 2.0], [1.5, 1.9], at_low=2.0, at_high=2.0)["T"].tolist() == [0, 0]
    assert transition_scores([1.0], [1.5], at_low=2.0, at_high=1.0)["T"].tolist() == [0]


def test_unreachable_points_stay_unknown_and_do_not_spread() -> None:
    scores = transition_scores([1.2, NAN, 1.3, 1.4], [1.0, 1.0, NAN, 1.2], at_low=1.0, at_high=1.2)
    assert np.isnan(scores["CTS"]).tolist() == [False, True, True, False]
    assert np.isnan(scores["smoothed"]).tolist() == [False, True, True, False]
    assert scores["smoothed"][3] == pytest.approx(scores["CTS"][3])
    core = find_core([0.90, 0.91, 0.92, 0.93], scores["smoothed"].tolist())
    assert core == (0.93, 0.93)


def test_a_core_at_a_known_place() -> None:
    assert find_core(SWEEP, [0, 0.1, 0.2, 0.9, 1.0, 0.8, 0.1]) == (0.93, 0.95)
    assert find_band(SWEEP, [0, 0.1, 0.5, 0.9, 1.0, 0.8, 0.1]) == (0.92, 0.95)


def test_the_background_counts() -> None:
    """B = 0.5 at 90 %: the threshold is 0.5 + 0.7 * 0.5 = 0.85."""
    assert find_core(SWEEP, [0.5, 0.1, 0.84, 0.86, 1.0, 0.8, 0.1]) == (0.93, 0.94)


def test_two_equal_runs_go_to_the_higher_score() -> None:
    assert find_core(SWEEP, [0, 0.8, 0.9, 0, 0.8, 1.0, 0]) == (0.94, 0.95)
    assert find_core(SWEEP, [0, 0.8, 1.0, 0, 0.8, 0.9, 0]) == (0.91, 0.92)
    assert find_core(SWEEP, [0, 1.0, 0, 0.8, 0.8, 0.8, 0]) == (0.93, 0.95)  # the longest first


def test_a_flat_score_detects_nothing() -> None:
    assert find_core(SWEEP, [0.3] * 7) is None
    assert find_core(SWEEP, [0.0] * 7) is None
    assert find_core(SWEEP, [1.0, 0.2, 0.1, 0.5, 0.9, 0.3, 0.2]) is None  # never above its background
    assert find_core(SWEEP, [NAN] * 7) is None


def test_a_maximum_at_the_edge_and_a_single_point() -> None:
    assert find_core(SWEEP, [0, 0, 0, 0, 0.1, 0.8, 1.0]) == (0.95, 0.96)
    assert find_core(SWEEP, [0, 0, 0, 1.0, 0, 0, 0]) == (0.93, 0.93)
    assert find_core([0.95], [1.0]) == (0.95, 0.95)  # no anchor below: the background is 0


def test_a_short_band_is_not_detected() -> None:
    assert find_band(SWEEP, [0, 0, 0, 1.0, 0.9, 0, 0]) is None
    assert find_band(SWEEP, [0, 0, 0.6, 1.0, 0.9, 0, 0]) == (0.92, 0.94)


@given(st.lists(st.floats(0, 1), min_size=7, max_size=7), st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_core_does_not_care_for_the_scale_of_g(scores: list[float], scale: float) -> None:
    assert find_core(SWEEP, scores) == find_core(SWEEP, [scale * x for x in scores])


def test_mismatched_arrays() -> None:
    with pytest.raises(InputError, match="7 sparsities need as many scores, not 2"):
        find_core(SWEEP, [1.0, 2.0])


def test_longest_run() -> None:
    assert runs([True, False, True, True]) == [[0], [2, 3]]
    assert longest_run([0.1, 0.2, 0.3, 0.4], [True, False, True, True], [9, 0, 1, 1]) == (0.3, 0.4)
    assert longest_run([0.1, 0.2, 0.3, 0.4], [True, False, True, True], [9, 0, 1, 1], points=3) is None
    assert longest_run([0.1], [False], [1]) is None


def test_overlap() -> None:
    assert overlap((0.91, 0.94), (0.93, 0.96), SWEEP) == 0.5
    assert overlap((0.91, 0.94), None, SWEEP) == 0
    assert overlap(None, (0.91, 0.94), SWEEP) == 0


def test_consensus_over_draws() -> None:
    found = consensus([(0.93, 0.95), (0.93, 0.94), (0.95, 0.96)], SWEEP)
    assert found.votes == {0.90: 0, 0.91: 0, 0.92: 0, 0.93: 2, 0.94: 2, 0.95: 2, 0.96: 1}
    assert found.majority == (0.93, 0.95)
    assert found.stable is None
    assert consensus([(0.93, 0.94)] * 3, SWEEP).stable == (0.93, 0.94)
    assert consensus([None, None, (0.93, 0.94)], SWEEP).majority is None


def test_all_sparsities_of_a_sweep_join_one_grid() -> None:
    plans = [Allocation({"a": s, "b": 0.5}, {"a": 10, "b": 10}, 20) for s in (0.3, 0.1, 0.3)]
    assert sparsities_per_layer(plans, {"a": [0.7], "b": [0.7]}) == {"a": [0.1, 0.3, 0.7], "b": [0.5, 0.7]}
