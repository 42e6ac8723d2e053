"""Rules: how much of each layer goes. One signature, one registry; names or callables."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from repairability.allocation import Allocation, check_sparsity
from repairability.errors import InputError, unknown
from repairability.network.layers import Layers, prunable_layers
from repairability.rules.erk import erk
from repairability.rules.forced import forced
from repairability.rules.lamp import lamp
from repairability.rules.magnitude import magnitude
from repairability.rules.measured import MEASURES, raw, residual, rr
from repairability.rules.uniform import uniform

Rule = Callable[..., Allocation]
"""(layers, sparsity, curves=None, **options) -> Allocation"""

RULES: dict[str, Rule] = {
    "uniform": uniform,
    "global": magnitude,
    "erk": erk,
    "lamp": lamp,
    "raw": raw,
    "residual": residual,
    "rr": rr,
    "forced": forced,
}


def get_rule(rule: str | Rule) -> Rule:
    """A rule by name; a callable is its own rule."""
    if callable(rule):
        return rule
    if rule not in RULES:
        raise unknown("rule", str(rule), RULES)
    return RULES[rule]


def allocate(
    model: nn.Module | Layers,
    *,
    sparsity: float,
    rule: str | Rule = "erk",
    curves: Any = None,
    **options: Any,
) -> Allocation:
    """Distribute `sparsity` (over the prunable weights) among the layers of `model`; nothing is changed.

    `model` is a network, or what `prunable_layers` made of one when the choice of layers matters. The rules "raw",
    "residual" and "rr" need `curves`, the result of `diagnose` (or one `Curves`). `options` are the rule's own:
    `cap`, `floor` (erk), `over` (global), `solver` (raw, residual, rr), `pinned`, `rest` (forced).
    """
    target = check_sparsity(sparsity)
    function = get_rule(rule)
    layers = model if isinstance(model, Layers) else prunable_layers(model)
    _check_options(function, options)
    return function(layers, target, curves, **options)


def options_of(rule: str | Rule) -> list[str]:
    """The options a rule names in its signature."""
    parameters = inspect.signature(get_rule(rule)).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def _check_options(rule: Rule, options: dict[str, Any]) -> None:
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(rule).parameters.values()):
        return
    known = options_of(rule)
    for name in options:
        if name not in known:
            raise InputError(
                f"rule {getattr(rule, '__name__', rule)!r} takes no option {name!r}; it takes: "
                f"{', '.join(known) or 'none'}"
            )


__all__ = ["MEASURES", "RULES", "Rule", "allocate", "get_rule", "options_of"]
