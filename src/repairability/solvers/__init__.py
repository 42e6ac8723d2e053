"""Solvers: choose one level per layer, least total cost, at least the budget pruned. Arrays in, levels out."""

from __future__ import annotations

from collections.abc import Callable

from repairability.naming import named
from repairability.solvers.exact import exact
from repairability.solvers.greedy import greedy
from repairability.solvers.problem import Problem

Solver = Callable[[Problem], list[int]]

SOLVERS: dict[str, Solver] = {"greedy": greedy, "exact": exact}


def get_solver(solver: str | Solver) -> Solver:
    """A solver by name; a callable is its own solver."""
    return solver if callable(solver) else named("solver", solver, SOLVERS)


__all__ = ["SOLVERS", "Problem", "Solver", "exact", "get_solver", "greedy"]
