"""Recipe: how a network is pruned, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from repairability.repairs import RepairLike
from repairability.rules import RuleLike
from repairability.scores import ScoreLike


@dataclass(frozen=True)
class Recipe:
    """A rule says how many weights each layer loses, a score which ones, a repair what is mended; options are the
    rule's own. Names or callables.
    """

    rule: RuleLike = "rr"
    score: ScoreLike = "magnitude"
    repair: RepairLike = "cr+bn"
    options: Mapping[str, Any] = field(default_factory=dict)
