"""What a detector is: a network, its images and a sweep; the core, and what is left of it without information."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from repairability._torch import copy_of, reset_weights_
from repairability.calibration import CalibrationSet
from repairability.detect.result import Transition
from repairability.diagnostics import Diagnosis
from repairability.network.layers import Layers
from repairability.pruning import RECIPES, PruneConfig, measurement_for
from repairability.pruning.plan import Grid
from repairability.rules import RuleLike, own_options
from repairability.transition import Interval, overlap

SHUFFLES = 20


@dataclass(frozen=True, eq=False)
class Detector(ABC):
    """One network, on the same images throughout."""

    model: nn.Module
    settings: PruneConfig
    calibration: CalibrationSet
    sweep: tuple[float, ...]

    @abstractmethod
    def detect(self) -> Transition: ...

    @abstractmethod
    def shuffled(self, core: Interval) -> float:
        """The median share of the core that is also named on curves shuffled among layers."""

    @property
    @abstractmethod
    def rules(self) -> Sequence[RuleLike]:
        """Whose allocations it compares."""

    def options(self, rule: RuleLike) -> dict[str, Any]:
        """Those of the settings' options that are this rule's."""
        return own_options(rule, self.rules, self.settings.options)

    def find(self, *, null: bool) -> Transition:
        """The core and the band; with `null`, how much of the core survives without information."""
        transition = self.detect()
        if not null or transition.core is None:
            return transition
        untrained = copy_of(self.model)
        reset_weights_(untrained, seed=0)
        other = replace(self, model=untrained, sweep=transition.sparsities).detect()
        by_chance = overlap(transition.core, other.core, transition.sparsities)
        return replace(transition, null={"shuffled": self.shuffled(transition.core), "random weights": by_chance})

    @cached_property
    def layers(self) -> Layers:
        return self.settings.layers(self.model, self.calibration)

    def diagnosed(self, points: Sequence[float], grid: Grid) -> Diagnosis:
        """The curves that rr needs to reach these points."""
        wanted = measurement_for(RECIPES["paper"], points, replace(self.settings, grid=grid))
        assert wanted is not None, "rr works on curves"
        return wanted.diagnose(self.model, self.calibration, self.layers)
