"""What is to be saved: weights, multiply-adds, or the time that the network takes on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from repairability.allocation import Allocation, check_sparsity
from repairability.calibration import CalibrationSet
from repairability.deploy.pricing import dense_time, milliseconds, time_of
from repairability.errors import BudgetError, InputError, unknown
from repairability.network.layers import Layers
from repairability.prices import Prices
from repairability.rules import RuleLike, allocate, get_rule
from repairability.tables import percent

KINDS = ("weights", "macs")

NEAR = 0.03
"""A speed that is met so closely is not corrected further."""

TRIES = 4

OVER = 0.01
"""An allocation by levels that prunes so much more than was asked for says so."""


class PricedNetwork(Protocol):
    """What a budget must know of a session: the network, its layers and images, and its multiply-adds."""

    model: nn.Module
    layers: Layers
    calibration: CalibrationSet

    @property
    def macs(self) -> Prices: ...


@dataclass(frozen=True)
class Budget:
    """`share` of the prunable layers' weights, or multiply-adds (`kind`), is to go; or the network is to be `speedup`
    times as fast as the unpruned one, both accelerated on this machine with torch's threads, one sample at a time.
    """

    share: float | None = None
    kind: str = "weights"
    speedup: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("budget", self.kind, KINDS)
        if (self.share is None) == (self.speedup is None):
            raise InputError("say either how sparse the network shall be (sparsity=0.9) or how fast (speedup=2.0)")
        if self.share is not None:
            check_sparsity(self.share)
        elif self.kind != "weights":
            raise InputError(f"a speedup is a budget of its own: leave budget={self.kind!r} out")
        elif not isinstance(self.speedup, (int, float)) or not 1 < self.speedup < math.inf:
            raise InputError(f"speedup must be above 1 and finite, not {self.speedup!r}")

    @property
    def targets(self) -> list[float]:
        """The sparsities that a diagnosis must be ready for; of other budgets than weights, all."""
        return [self.share] if self.share is not None and self.kind == "weights" else [0.0, 0.975]

    def allocation(
        self, network: PricedNetwork, rule: RuleLike, curves: Any, options: Mapping[str, Any]
    ) -> tuple[Allocation, tuple[str, ...]]:
        """What goes where, and what there is to say about it."""
        if self.speedup is not None:
            return self._fast_enough(network, rule, curves, options)
        assert self.share is not None
        prices = network.macs if self.kind == "macs" else None
        plan = allocate(network.layers, sparsity=self.share, rule=rule, curves=curves, prices=prices, **options)
        if prices is not None or not get_rule(rule).works_on_curves(options) or plan.sparsity - self.share <= OVER:
            return plan, ()
        return plan, (
            f"{percent(plan.sparsity)} where {percent(self.share)} was asked for: rule {plan.rule!r} moves a layer by "
            "whole levels of its grid, and of few layers one is many weights; a finer grid or rule 'erk' comes nearer",
        )

    def _fast_enough(
        self, network: PricedNetwork, rule: RuleLike, curves: Any, options: Mapping[str, Any]
    ) -> tuple[Allocation, tuple[str, ...]]:
        """The layers' own times add up to the network's but roughly, so the network of each allocation is timed (its
        smallest weights gone: which ones go does not matter to the clock) and the wish corrected by what it misses.
        """
        assert self.speedup is not None
        model, layers, calibration = network.model, network.layers, network.calibration
        example = next(iter(calibration.held[:1].split(1)))
        prices = milliseconds(model, layers, example)
        dense = dense_time(model, example, None)
        goal = dense / self.speedup
        whole = sum(map(prices.full, layers.names))
        wish, best = goal, None
        for _ in range(TRIES):
            share = 1 - (wish - prices.fixed) / whole
            if share > 1 or wish <= 0:
                least = prices.fixed + float(sum(prices.at(x, prices.grid[x][-1]) for x in layers.names))
                raise BudgetError(
                    f"{self.speedup:g} times as fast would be {goal:.2f} ms, and {least:.2f} ms stay where every layer "
                    f"is pruned to {prices.grid[layers.names[0]][-1]:.1%}: ask for less"
                )
            plan = allocate(layers, sparsity=max(0.0, share), rule=rule, curves=curves, prices=prices, **options)
            taken = time_of(model, plan, example, None)
            if best is None or abs(taken - goal) < abs(best[0] - goal):
                best = (taken, plan)
            if abs(taken / goal - 1) <= NEAR:
                break
            wish *= goal / taken
        assert best is not None
        taken, plan = best
        times = f"{taken:.2f} ms instead of {dense:.2f} for one sample, both accelerated"
        return plan, (f"{dense / taken:.2f} times as fast by this allocation: {times}",)
