"""The same problem solved to optimality, so that the greedy's gap is a number."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from repairability.errors import RepairabilityError
from repairability.solvers.greedy import greedy
from repairability.solvers.problem import Problem

_COST_SPAN = 1e6
"""Costs are stretched to this span: HiGHS stops at an absolute gap of 1e-6, which then is 1e-12 of the span."""

_ASIDE = threading.Lock()
"""Of whoever has turned standard output aside."""


def exact(problem: Problem) -> list[int]:
    """The least-cost levels that meet the budget: a multiple-choice knapsack, by HiGHS.

    HiGHS accepts constraints up to a tolerance, so each answer is recounted; one that misses the
    budget is cut off and the search goes on. The result is never worse than the greedy's.
    """
    from scipy import optimize, sparse  # here, because importing it costs half a second

    sizes = [len(grid) for grid in problem.grids]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    costs = np.concatenate([np.asarray(c) - np.min(c) for c in problem.costs])
    if costs.max() > 0:
        costs = costs / costs.max() * _COST_SPAN
    saved = np.concatenate([np.asarray(c, dtype=float) for c in problem.saved])
    unit = float(saved.max()) or 1.0

    one_level_each = sparse.block_diag([np.ones((1, size)) for size in sizes], format="csr")
    constraints = [
        optimize.LinearConstraint(one_level_each, 1, 1),
        optimize.LinearConstraint(saved[None] / unit, problem.budget / unit, np.inf),
    ]
    zero_or_one = {"integrality": np.ones(len(costs)), "bounds": optimize.Bounds(0, 1)}
    fallback = greedy(problem)  # feasible by construction of the problem, and the bound to beat
    while True:
        with _silent_stdout():
            answer = optimize.milp(costs, constraints=constraints, **zero_or_one, options={"mip_rel_gap": 0})
        if answer.x is None:
            if len(constraints) > 2:  # every selection the tolerance let in was cut off; the greedy's is what is left
                return fallback
            raise RepairabilityError(f"HiGHS found no solution: {answer.message}")
        levels = [int(np.argmax(answer.x[a : a + n])) for a, n in zip(starts, sizes, strict=True)]
        if problem.saving(levels) >= problem.budget:
            return levels if problem.cost(levels) <= problem.cost(fallback) else fallback
        chosen = np.zeros(len(costs))
        chosen[starts + np.array(levels)] = 1
        constraints.append(optimize.LinearConstraint(chosen[None], -np.inf, len(sizes) - 1))


@contextmanager
def _silent_stdout() -> Iterator[None]:
    """HiGHS now and then prints a line of its own, asked to be silent or not, which would end up in somebody's --json.

    It comes from C, so the file descriptor itself is turned aside, and C's buffer is written out before it comes back.
    One thread at a time: a second one would take what the first has turned aside for the real one.
    """
    with _ASIDE:
        kept = None
        with suppress(OSError):  # no standard output at all
            kept = os.dup(1) if os.name == "posix" else None
        if kept is None:
            yield
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            if sys.stdout is not None:
                with suppress(OSError):  # a full disk, a pipe that nobody reads: whoever prints next is told
                    sys.stdout.flush()
            os.dup2(nowhere, 1)
            yield
        finally:
            ctypes.CDLL(None).fflush(None)
            os.dup2(kept, 1)
            os.close(kept)
            os.close(nowhere)
