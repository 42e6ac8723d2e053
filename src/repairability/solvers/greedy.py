"""The paper's solver (alg:app_allocation)."""

from __future__ import annotations

import heapq

from repairability.solvers.problem import Problem


def greedy(problem: Problem) -> list[int]:
    """Start every layer at its lowest level; while the budget is not met, promote the layer whose next step has the
    smallest (g(next) - g(now)) / ((next - now) * n). Negative steps are allowed; ties go to the earlier layer.
    """
    levels = [0] * len(problem.totals)
    pruned = problem.pruned(levels)
    steps = [(_step(problem, layer, 0), layer) for layer, grid in enumerate(problem.grids) if len(grid) > 1]
    heapq.heapify(steps)
    while pruned < problem.budget:
        _, layer = heapq.heappop(steps)
        level = levels[layer] = levels[layer] + 1
        pruned += problem.counts[layer][level] - problem.counts[layer][level - 1]
        if level + 1 < len(problem.grids[layer]):
            heapq.heappush(steps, (_step(problem, layer, level), layer))
    return levels


def _step(problem: Problem, layer: int, level: int) -> float:
    """The cost of a layer's next step per weight (eq:greedy_increment)."""
    costs, grid = problem.costs[layer], problem.grids[layer]
    weights = (grid[level + 1] - grid[level]) * problem.totals[layer]
    return float((costs[level + 1] - costs[level]) / weights)
