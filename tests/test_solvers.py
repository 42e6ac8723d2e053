from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from repairability import BudgetError, InputError
from repairability.solvers import Problem, exact, get_solver, greedy

cost = st.integers(-1000, 1000).map(lambda i: i / 1000)


@st.composite
def problems(draw: st.DrawFn, layers: int = 4, levels: int = 4) -> Problem:
    """Small problems with a reachable target: different grids, negative steps, ties, layers of one level."""
    grids, costs, totals = [], [], []
    for _ in range(draw(st.integers(1, layers))):
        grid = sorted(draw(st.sets(st.sampled_from([0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95]), min_size=1, max_size=levels)))
        grids.append(np.array(grid))
        costs.append(np.array(draw(st.lists(cost, min_size=len(grid), max_size=len(grid)))))
        totals.append(draw(st.integers(1, 500)))
    target = draw(st.floats(0, 1))
    try:
        return Problem(grids, costs, totals, target)
    except BudgetError:
        total = sum(totals)
        top = sum(reference.pruned_count(n, float(g[-1])) for n, g in zip(totals, grids, strict=True))
        bottom = sum(reference.pruned_count(n, float(g[0])) for n, g in zip(totals, grids, strict=True))
        budget = sum(reference.pruned_count(n, target) for n in totals)
        assert budget > top or budget <= bottom, f"refused although {bottom} < {budget} <= {top} of {total}"
        return Problem([np.array([0.0, 0.9])], [np.array([0.0, 1.0])], [10], 0.5)


def as_lists(problem: Problem) -> tuple[list[list[float]], list[list[float]], list[int], float]:
    return (
        [g.tolist() for g in problem.grids],
        [c.tolist() for c in problem.costs],
        list(problem.totals),
        problem.target,
    )


@given(problems())
def test_greedy_is_the_algorithm(problem: Problem) -> None:
    assert greedy(problem) == reference.greedy(*as_lists(problem))


@given(problems())
def test_greedys_last_step_crosses_the_target(problem: Problem) -> None:
    levels = greedy(problem)
    assert problem.saving(levels) >= problem.budget
    if problem.saving(levels) > problem.budget:  # then some single step back falls below the budget
        back = [
            problem.saving(levels) - problem.saved[i][k] + problem.saved[i][k - 1]
            for i, k in enumerate(levels)
            if k > 0
        ]
        assert min(back, default=0) < problem.budget


@settings(deadline=None, max_examples=150)
@given(problems())
def test_exact_is_optimal_and_never_worse_than_greedy(problem: Problem) -> None:
    levels = exact(problem)
    assert problem.saving(levels) >= problem.budget
    assert problem.cost(levels) <= problem.cost(greedy(problem))
    assert problem.cost(levels) == pytest.approx(reference.best_cost(*as_lists(problem)), abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(problems(layers=3), st.sampled_from([1e-9, 1e-3, 1e6]))
def test_exact_does_not_care_for_the_unit_of_cost(problem: Problem, unit: float) -> None:
    scaled = Problem(problem.grids, [c * unit for c in problem.costs], problem.totals, problem.target)
    assert problem.cost(exact(scaled)) == pytest.approx(problem.cost(exact(problem)), abs=1e-9)


def test_exact_meets_a_budget_that_a_tolerance_would_miss() -> None:
    """One weight of ten million is below any solver's tolerance: the recount in whole weights must catch it."""
    n = 10_000_001
    problem = Problem(
        [np.array([0.0, 0.5]), np.array([0.0, 0.5]), np.array([0.0, 1.0])],
        [np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([0.0, 5.0])],
        [n, n, 2],
        0.5,
    )
    assert problem.budget == 10_000_001  # 5,000,000 twice (half to even) and 1
    levels = exact(problem)
    assert problem.saving(levels) >= problem.budget
    assert levels == [1, 1, 1]


def test_ties_go_to_the_earlier_layer() -> None:
    grid = np.array([0.0, 0.5])
    problem = Problem([grid] * 3, [np.array([0.0, 1.0])] * 3, [10] * 3, 0.3)
    assert greedy(problem) == [1, 1, 0]


def test_negative_steps_are_taken_first() -> None:
    grid = np.array([0.0, 0.5])
    problem = Problem([grid] * 2, [np.array([0.0, 1.0]), np.array([0.0, -1.0])], [10] * 2, 0.25)
    assert greedy(problem) == exact(problem) == [0, 1]


def test_targets_outside_the_grid_are_named() -> None:
    grid, costs = [np.array([0.7, 0.975])], [np.array([0.1, 0.2])]
    with pytest.raises(BudgetError, match=r"98.00 % is above the grid's top: the grid reaches 70.00 % to 97.50 %"):
        Problem(grid, costs, [1000], 0.98)
    for target in (0.7, 0.5):
        with pytest.raises(BudgetError, match=r"is at or below the grid's bottom: the grid reaches 70.00 %"):
            Problem(grid, costs, [1000], target)
    assert greedy(Problem([np.array([0.0, 0.5])], costs, [1000], 0.0)) == [0]


def test_names_and_callables() -> None:
    assert get_solver("exact") is exact
    assert get_solver(greedy) is greedy
    with pytest.raises(InputError, match=r"unknown solver 'greddy'; did you mean greedy\?"):
        get_solver("greddy")


def test_exact_keeps_stdout_to_us() -> None:
    """In a process of its own: what C code prints sits in a buffer that only the process's end writes out. On these two
    problems HiGHS prints.
    """
    solve = """
import numpy as np
from repairability.solvers import Problem, exact
grid = np.array([0.3, 0.5, 0.7, 0.8, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995])
print("before")
for seed in (26, 27):
    random = np.random.default_rng(seed)
    totals = random.choice([2304, 4608, 9216, 18432, 36864], 20).tolist()
    costs = [np.sort(random.random(12)) ** 3 for _ in range(20)]
    exact(Problem([grid] * 20, costs, totals, 0.9))
print("behind")
"""
    assert subprocess.run([sys.executable, "-c", solve], capture_output=True, check=True).stdout.split() == [
        b"before",
        b"behind",
    ]
