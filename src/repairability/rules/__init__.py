"""Rules: how much of each layer goes. One signature, one registry; names or callables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from repairability._torch import unwrapped
from repairability.allocation import Allocation, check_sparsity
from repairability.curves import OUTPUT, Curves
from repairability.errors import BudgetError
from repairability.naming import name_of, named
from repairability.network.candidates import candidates
from repairability.network.discover import layers_named, prunable_layers
from repairability.network.layers import Layers
from repairability.prices import Prices
from repairability.rules.erk import erk
from repairability.rules.forced import Forced, forced
from repairability.rules.lamp import lamp
from repairability.rules.magnitude import magnitude
from repairability.rules.measured import output, raw, residual, rr
from repairability.rules.rule import Rule, ready
from repairability.rules.uniform import uniform
from repairability.tables import percent

RULES: dict[str, Rule] = {
    "uniform": Rule(uniform, "uniform", curves=False),
    "global": Rule(magnitude, "global", curves=False, prunable={"over": "prunable"}),
    "erk": Rule(erk, "erk", curves=False),
    "lamp": Rule(lamp, "lamp", curves=False),
    "raw": Rule(raw, "raw", curves=True, priced=True),
    "residual": Rule(residual, "residual", curves=True, priced=True),
    "rr": Rule(rr, "rr", curves=True, priced=True),
    "output": Rule(output, "output", curves=True, measure=OUTPUT, priced=True),
    "forced": Forced(forced, "forced"),
}

PAPER_RULES = ("global", "uniform", "raw", "residual", "rr", "erk", "lamp")
"""The seven that the paper compares, in its order."""

RuleLike = str | Rule | Callable[..., Allocation] | Allocation
"""What is taken wherever a rule is: its name, a Rule, a bare function or a partial of one, or a ready Allocation."""


def get_rule(rule: RuleLike) -> Rule:
    """A rule by name; a bare function is wrapped, an allocation is a rule that always gives it."""
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, Allocation):
        return ready(rule)
    if isinstance(rule, functools.partial) and isinstance(rule.func, Rule):
        return Rule(
            rule,
            rule.func.name,
            rule.func.works_on_curves(rule.keywords),
            measure=rule.func.measure,
            priced=rule.func.priced,
        )
    return Rule(rule, name_of(rule)) if callable(rule) else named("rule", rule, RULES)


def allocate(
    model: nn.Module | Layers,
    *,
    sparsity: float,
    rule: RuleLike = "erk",
    curves: Any = None,
    prices: Prices | None = None,
    **options: Any,
) -> Allocation:
    """Distribute `sparsity` (over the prunable weights) among the layers of `model`; nothing is changed.

    `model` is a network, or what `prunable_layers` made of one when the choice of layers matters. The rules "raw",
    "residual", "rr" and "output" need `curves`, the result of `diagnose` (or one `Curves`). `options` are the rule's
    own: `cap`, `floor` (erk), `over` (global), `solver` (raw, residual, rr, output), `pinned`, `rest` (forced).

    With `prices` (multiply-adds, milliseconds) `sparsity` is the share of the layers' full price that is to go, in
    place of their weights.
    """
    target = check_sparsity(sparsity)
    layers = model if isinstance(model, Layers) else _layers_of(model, curves)
    plan = _priced(get_rule(rule), layers, target, curves, prices, options)
    return plan if plan.parameters is not None else replace(plan, parameters=layers.parameters)


def _layers_of(model: nn.Module, curves: Any) -> Layers:
    """The usual ones. A diagnosis saw the network run, and knows better which layers are first and last in it."""
    layers, found = prunable_layers(model), getattr(curves, "rr", curves)
    measured = set(found) if isinstance(found, Curves) else set()
    other = measured.difference(layers.names)
    if not other or not measured.issubset(x.layer.name for x in candidates(unwrapped(model))):
        return layers  # what is not covered, the rule names
    seen = layers_named(model, measured)
    return Layers(list(seen), max(layers.n_all, seen.total), layers.parameters)


def _priced(
    rule: Rule, layers: Layers, target: float, curves: Any, prices: Prices | None, options: Mapping[str, Any]
) -> Allocation:
    """A rule that solves for prices is handed them; of any other, the sparsity whose allocation saves as much."""
    if prices is None:
        return rule(layers, target, curves, **options)
    if rule.priced:
        return rule(layers, target, curves, prices=prices, **options)
    low, high = 0.0, 1.0
    plan: Allocation | None = None
    for _ in range(30):
        middle = (low + high) / 2
        try:
            now = rule(layers, middle, curves, **options)
        except BudgetError:  # this rule's own ends: above them is too sparse, below them too dense
            low, high = (low, middle) if middle > target else (middle, high)
            continue
        if prices.saved(now) >= target:
            plan, high = now, middle
        else:
            low = middle
    if plan is None:
        raise BudgetError(
            f"rule {rule.name!r} cannot save {percent(target)} of the {prices.unit} of these layers at any sparsity"
        )
    return replace(plan, target=None)


def own_options(rule: RuleLike, rules: Sequence[RuleLike], options: Mapping[str, Any]) -> dict[str, Any]:
    """In a comparison, an option goes to the rules that take it; one that none takes is left to fail by name."""

    def takes(given: RuleLike, name: str) -> bool:
        known = get_rule(given).takes(options)
        return known is None or name in known

    taken = [name for name in options if takes(rule, name) or not any(takes(other, name) for other in rules)]
    return {name: options[name] for name in taken}


__all__ = ["PAPER_RULES", "RULES", "Rule", "RuleLike", "allocate", "get_rule", "own_options"]
