"""raw, residual, rr and output: a solver on measured curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from repairability.allocation import Allocation
from repairability.curves import MEASURES, Measured
from repairability.errors import InputError
from repairability.network.layers import Layers
from repairability.solvers import Problem, Solver, get_solver


def raw(layers: Layers, sparsity: float, curves: Any = None, *, solver: str | Solver = "greedy") -> Allocation:
    """Least total activation damage before repair."""
    return _measured("raw", layers, sparsity, curves, solver)


def residual(layers: Layers, sparsity: float, curves: Any = None, *, solver: str | Solver = "greedy") -> Allocation:
    """Least total activation damage after repair."""
    return _measured("residual", layers, sparsity, curves, solver)


def rr(layers: Layers, sparsity: float, curves: Any = None, *, solver: str | Solver = "greedy") -> Allocation:
    """Least total fraction of the damage that remains after repair: relative repairability."""
    return _measured("rr", layers, sparsity, curves, solver)


def output(layers: Layers, sparsity: float, curves: Any = None, *, solver: str | Solver = "exact") -> Allocation:
    """Least total damage at the network's output after repair."""
    return _measured("output", layers, sparsity, curves, solver)


def _measured(measure: str, layers: Layers, sparsity: float, curves: Any, solver: str | Solver) -> Allocation:
    if curves is None:
        more = "" if measure in MEASURES else f", measures=({measure!r},)"
        words = f"pass curves=repairability.diagnose(model, images{more})"
        raise InputError(f"rule {measure!r} needs measured curves: {words}")
    if not isinstance(curves, Measured):
        raise InputError(f"rule {measure!r} needs Curves or a diagnosis that has them, not {type(curves).__name__}")
    chosen, names = curves.measured(measure), layers.names
    missing = [name for name in names if name not in chosen]
    if missing:
        raise InputError(f"the {measure} curves do not cover {', '.join(missing)}; diagnose these layers too")
    grids, costs = [chosen.grid[name] for name in names], [chosen[name] for name in names]
    values = np.concatenate(costs)
    if values.size > 1 and np.ptp(values) < 1e-9 and max(grid[-1] for grid in grids) > 0:
        raise InputError(  # they come from a repair that does nothing where it was observed
            f"the {measure} curves are {values[0]:g} everywhere and rank no layer: the repair they are "
            "conditioned on changes nothing at the place observed; diagnose with repair='cr+bn', or observe='norm'"
        )
    levels = get_solver(solver)(Problem(grids, costs, [layer.total for layer in layers], sparsity))
    sparsities = {name: float(grid[k]) for name, grid, k in zip(names, grids, levels, strict=True)}
    return Allocation(sparsities, layers.totals, layers.n_all, measure, sparsity)
