"""What a rule is: how much of each layer goes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from repairability.allocation import Allocation
from repairability.errors import InputError
from repairability.network.layers import Layers


@dataclass(frozen=True)
class Rule:
    """(layers, sparsity, curves=None, **options) -> Allocation, and what it needs for that.

    curves: True for a rule that works on measured curves, so that a run makes a diagnosis for it; False for one that
    does without; None for a bare function, which is handed the curves that are given and has none measured.
    measure: one that a diagnosis does not make unless it is asked to.
    priced: it takes `prices=` and saves a share of them; of another rule, the sparsity is found that does.
    prunable: the options under which its budget is over the prunable weights, where that is not what it does anyway.
    """

    function: Callable[..., Allocation]
    name: str
    curves: bool | None = None
    prunable: Mapping[str, Any] = field(default_factory=dict)
    measure: str | None = None
    priced: bool = False

    def __call__(self, layers: Layers, sparsity: float, curves: Any = None, **options: Any) -> Allocation:
        self.check({name: value for name, value in options.items() if not (self.priced and name == "prices")})
        return self.function(layers, sparsity, curves, **options)

    def check(self, options: Mapping[str, Any]) -> None:
        """Refuse an option that the rule does not take."""
        known = self.takes(options)
        for name in options:
            if known is not None and name not in known:
                takes = ", ".join(known) or "none"
                raise InputError(f"rule {self.name!r} takes no option {name!r}; it takes: {takes}")

    def works_on_curves(self, options: Mapping[str, Any]) -> bool:
        """Whether, with these options, the rule needs measured curves."""
        return bool(self.curves)

    def measures(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """What a diagnosis must measure for it beyond the usual."""
        return () if self.measure is None else (self.measure,)

    def takes(self, options: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The options it names in its signature, beside these; None where it takes any."""
        parameters = inspect.signature(self.function).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return None
        names = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        return tuple(name for name in names if name != "prices")  # a budget, no option


@dataclass(frozen=True)
class Ready:
    """An allocation that was made before, as a function of a rule."""

    allocation: Allocation

    def __call__(self, layers: Layers, sparsity: float, curves: Any = None) -> Allocation:
        if layers.totals != dict(self.allocation.totals):
            raise InputError("the allocation was made for other layers than those that are to be pruned")
        return self.allocation


def ready(allocation: Allocation) -> Rule:
    """An allocation that was made before, as a rule that always gives it."""
    return Rule(Ready(allocation), allocation.rule or "given", curves=False)
