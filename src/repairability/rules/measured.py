"""raw, residual and rr: a solver on measured curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from repairability.allocation import Allocation
from repairability.curves import Curves, Measured
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


def _measured(measure: str, layers: Layers, sparsity: float, curves: Any, solver: str | Solver) -> Allocation:
    chosen = _curves_of(measure, curves)
    missing = [name for name in layers.names if name not in chosen]
    if missing:
        raise InputError(f"the {measure} curves do not cover {', '.join(missing)}; diagnose these layers too")
    _check_informative(chosen, layers)
    problem = Problem(
        [chosen.grid[name] for name in layers.names],
        [chosen[name] for name in layers.names],
        [layer.total for layer in layers],
        sparsity,
    )
    levels = get_solver(solver)(problem)
    sparsities = {x.name: float(grid[k]) for x, grid, k in zip(layers, problem.grids, levels, strict=True)}
    return Allocation(sparsities, layers.totals, layers.n_all, measure, sparsity)


def _check_informative(curves: Curves, layers: Layers) -> None:
    """Curves without any difference rank no layer; they come from a repair that does nothing where it was observed."""
    values = np.concatenate([curves[name] for name in layers.names])
    if values.size > 1 and np.ptp(values) < 1e-9 and max(curves.grid[name][-1] for name in layers.names) > 0:
        raise InputError(
            f"the {curves.measure} curves are {values[0]:g} everywhere and rank no layer: the repair they are "
            "conditioned on changes nothing at the place observed; diagnose with repair='cr+bn', or observe='norm'"
        )


def _curves_of(measure: str, curves: Any) -> Curves:
    if curves is None:
        raise InputError(f"rule {measure!r} needs measured curves: pass curves=repairability.diagnose(model, images)")
    if not isinstance(curves, Measured):
        raise InputError(f"rule {measure!r} needs Curves or a diagnosis that has them, not {type(curves).__name__}")
    return curves.measured(measure)
