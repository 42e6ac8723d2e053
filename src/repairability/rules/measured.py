"""raw, residual, rr and output: a solver on measured curves."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from repairability.allocation import Allocation
from repairability.curves import MEASURES, FloatArray, Measured
from repairability.errors import InputError
from repairability.network.layers import Layers
from repairability.prices import Prices
from repairability.solvers import Problem, Solver, get_solver


class MeasuredRule(Protocol):
    """What `raw`, `residual`, `rr` and `output` are."""

    def __call__(
        self,
        layers: Layers,
        sparsity: float,
        curves: Any = None,
        *,
        solver: str | Solver = ...,
        prices: Prices | None = None,
    ) -> Allocation: ...


def _rule(measure: str, sought: str, usual: str = "greedy") -> MeasuredRule:
    def rule(
        layers: Layers,
        sparsity: float,
        curves: Any = None,
        *,
        solver: str | Solver = usual,
        prices: Prices | None = None,
    ) -> Allocation:
        return _solved(measure, layers, sparsity, curves, solver, prices)

    rule.__name__ = rule.__qualname__ = measure  # and so it can be sent to another process
    rule.__doc__ = sought
    return rule


raw = _rule("raw", "Least total activation damage before repair.")
residual = _rule("residual", "Least total activation damage after repair.")
rr = _rule("rr", "Least total fraction of the damage that remains after repair: relative repairability.")
output = _rule("output", "Least total damage at the network's output after repair.", "exact")


def _solved(
    measure: str, layers: Layers, sparsity: float, curves: Any, solver: str | Solver, prices: Prices | None
) -> Allocation:
    if curves is None:
        more = "" if measure in MEASURES else f", measures=({measure!r},)"
        words = f"pass curves=repairability.diagnose(model, images{more})"
        raise InputError(f"rule {measure!r} needs measured curves: {words}")
    if not isinstance(curves, Measured):
        raise InputError(f"rule {measure!r} needs Curves or a diagnosis that has them, not {type(curves).__name__}")
    chosen, names = curves.measured(measure), layers.names
    missing = [name for name in names if name not in chosen]
    if missing:
        raise InputError(
            f"the {measure} curves do not cover {', '.join(missing)}; diagnose these layers too, or skip them"
        )
    grids, costs = [chosen.grid[name] for name in names], [chosen[name] for name in names]
    values = np.concatenate(costs)
    if values.size > 1 and np.ptp(values) < 1e-9 and max(grid[-1] for grid in grids) > 0:
        raise InputError(  # they come from a repair that does nothing where it was observed
            f"the {measure} curves are {values[0]:g} everywhere and rank no layer: the repair they are "
            "conditioned on changes nothing at the place observed; diagnose with repair='cr+bn', or observe='norm'"
        )
    totals = [layer.total for layer in layers]
    if prices is None:
        problem = Problem(grids, costs, totals, sparsity)
    else:
        # a level that costs no less than a lower one is no choice; greedy would stop before it
        useful = [_falling(prices.at(name, grid)) for name, grid in zip(names, grids, strict=True)]
        grids, costs = ([x[some] for x, some in zip(xs, useful, strict=True)] for xs in (grids, costs))
        priced = [(prices.at(name, grid), prices.full(name)) for name, grid in zip(names, grids, strict=True)]
        problem = Problem(grids, costs, totals, sparsity, priced)
    levels = get_solver(solver)(problem)
    sparsities = {name: float(grid[k]) for name, grid, k in zip(names, grids, levels, strict=True)}
    return Allocation(sparsities, layers.totals, layers.n_all, measure, sparsity if prices is None else None)


def _falling(prices: FloatArray) -> list[int]:
    """The first level, and those that are cheaper than all before them."""
    least = np.minimum.accumulate(prices)
    return [0, *(k for k in range(1, len(prices)) if prices[k] < least[k - 1])]
