"""The main job: a pruned and repaired copy of a network, from nothing but unlabeled images."""

from __future__ import annotations

from repairability.checkpoints import load
from repairability.pruning.choose import BEST, prune_best
from repairability.pruning.plan import Measurement, PruneConfig, grid_for, measurement_for
from repairability.pruning.prune import AUTO, prune, prune_many
from repairability.pruning.recipe import RECIPES, Recipe, RecipeLike, get_recipe
from repairability.pruning.result import PruneResult, Trial

__all__ = [
    "AUTO",
    "BEST",
    "RECIPES",
    "Measurement",
    "PruneConfig",
    "PruneResult",
    "Recipe",
    "RecipeLike",
    "Trial",
    "get_recipe",
    "grid_for",
    "load",
    "measurement_for",
    "prune",
    "prune_best",
    "prune_many",
]
