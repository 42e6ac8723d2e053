"""Some layers pinned to given sparsities, the rest by another rule within the same total budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from repairability.allocation import Allocation, check_sparsity, pruned_count, target_count
from repairability.errors import BudgetError, InputError
from repairability.naming import name_of
from repairability.network.layers import Layers
from repairability.rules.rule import Rule
from repairability.tables import percent

REST = "erk"
"""What the layers that are not pinned are left to, unless `rest` says otherwise."""


def forced(
    layers: Layers,
    sparsity: float,
    curves: Any = None,
    *,
    pinned: Mapping[str, float] | None = None,
    rest: str | Callable[..., Allocation] = REST,
    **options: Any,
) -> Allocation:
    """Pin layers (globs on names -> sparsity) and let `rest` distribute what remains of the budget; further options
    are those of `rest`. The paper's projection-forced ablation is `pinned={"*downsample*": 0.7}` with ERK.
    """
    from repairability.rules import allocate, get_rule

    fixed = _pinned_layers(layers, pinned or {})
    free = layers.subset(set(layers.names) - set(fixed))
    budget = target_count(layers.totals.values(), sparsity)
    spent = sum(pruned_count(layers[name].total, value) for name, value in fixed.items())
    slack = len(layers) / 2  # half a weight per layer, the rounding of any allocation
    if spent > budget + slack or spent + free.total < budget - slack:
        low, high = percent(spent / layers.total), percent((spent + free.total) / layers.total)
        reachable = f"{low} to {high}" if free else f"{low} only: every layer is pinned"
        raise BudgetError(
            f"sparsity {percent(sparsity)} is not reachable beside the pinned layers; reachable: {reachable}"
        )
    sparsities = dict(fixed)
    if free:
        options = {**get_rule(rest).prunable, **options}  # the budget is what the pinned layers left of the prunable
        left = min(1.0, max(0.0, budget - spent) / free.total)
        sparsities |= allocate(free, sparsity=left, rule=rest, curves=curves, **options)
    name = rest if isinstance(rest, str) else name_of(rest)
    return Allocation(sparsities, layers.totals, layers.n_all, f"forced({name})", sparsity)


@dataclass(frozen=True)
class Forced(Rule):
    """Needs what its `rest` needs, and takes its options beside its own."""

    def works_on_curves(self, options: Mapping[str, Any]) -> bool:
        return self._rest(options).works_on_curves(options)

    def measures(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        return self._rest(options).measures(options)

    def takes(self, options: Mapping[str, Any]) -> tuple[str, ...] | None:
        theirs = self._rest(options).takes(options)
        return None if theirs is None else ("pinned", "rest", *theirs)

    def _rest(self, options: Mapping[str, Any]) -> Rule:
        from repairability.rules import get_rule

        return get_rule(options.get("rest", REST))


def _pinned_layers(layers: Layers, pinned: Mapping[str, float]) -> dict[str, float]:
    if not pinned or not isinstance(pinned, Mapping):
        raise InputError(f"rule 'forced' needs pinned layers, such as pinned={{'*downsample*': 0.7}}, not {pinned!r}")
    fixed: dict[str, float] = {}
    for pattern, value in pinned.items():
        for name in layers.matching(pattern):
            if fixed.setdefault(name, check_sparsity(value, f"the pinned sparsity of {pattern!r}")) != value:
                raise InputError(f"layer {name!r} is pinned twice, to {fixed[name]:g} and to {value:g}")
    return fixed
