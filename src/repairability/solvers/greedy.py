"""The paper's solver (alg:app_allocation)."""

from __future__ import annotations

import heapq
import math

from repairability.solvers.problem import Problem


def greedy(problem: Problem) -> list[int]:
    """Start every layer at its lowest level; while the budget is not met, promote the layer whose next step has the
    smallest (g(next) - g(now)) / ((next - now) * n). Negative steps are allowed; ties go to the earlier layer.
    """
    levels = [0] * len(problem.totals)
    saved = problem.saving(levels)
    steps = [(_step(problem, layer, 0), layer) for layer, grid in enumerate(problem.grids) if len(grid) > 1]
    heapq.heapify(steps)
    while saved < problem.budget and steps:
        _, layer = heapq.heappop(steps)
        level = levels[layer] = levels[layer] + 1
        saved += problem.saved[layer][level] - problem.saved[layer][level - 1]
        if level + 1 < len(problem.grids[layer]):
            heapq.heappush(steps, (_step(problem, layer, level), layer))
    return levels


def _step(problem: Problem, layer: int, level: int) -> float:
    """The cost of a layer's next step per weight (eq:greedy_increment), or per unit of its price."""
    costs, grid = problem.costs[layer], problem.grids[layer]
    gain = (grid[level + 1] - grid[level]) * problem.totals[layer]
    if problem.prices is not None:
        gain = problem.saved[layer][level + 1] - problem.saved[layer][level]
    return float((costs[level + 1] - costs[level]) / gain) if gain > 0 else math.inf
