"""raw, residual and rr: a solver on measured curves."""

from __future__ import annotations

from typing import Any

from repairability.allocation import Allocation
from repairability.curves import Curves
from repairability.errors import InputError
from repairability.layers import Layers
from repairability.solvers import Problem, Solver, get_solver

MEASURES = ("raw", "residual", "rr")


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
    problem = Problem(
        [chosen.grid[name] for name in layers.names],
        [chosen[name] for name in layers.names],
        [layer.total for layer in layers],
        sparsity,
    )
    levels = get_solver(solver)(problem)
    sparsities = {x.name: float(grid[k]) for x, grid, k in zip(layers, problem.grids, levels, strict=True)}
    return Allocation(sparsities, layers.totals, layers.n_all, measure, sparsity)


def _curves_of(measure: str, curves: Any) -> Curves:
    """`curves` itself, or the `.raw`, `.residual`, `.rr` of a diagnosis."""
    if curves is None:
        raise InputError(f"rule {measure!r} needs measured curves: pass curves=repairability.diagnose(model, images)")
    if not isinstance(curves, Curves):
        curves = getattr(curves, measure, None)
    if not isinstance(curves, Curves):
        raise InputError(f"rule {measure!r} needs Curves or a diagnosis that has them, not {type(curves).__name__}")
    if curves.measure != measure:
        raise InputError(f"rule {measure!r} was given the curves of {curves.measure!r}")
    return curves
