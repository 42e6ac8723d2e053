"""repairability: post-training pruning at very high sparsity, without labels or retraining.

Ask, layer by layer, how much of the damage of pruning a cheap repair can mend; allocate sparsity by the answer.

A name is imported when it is first used: `import repairability` costs nothing, and the command line opens at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what a type checker sees; a test holds it and the table below together
    from repairability import models as models
    from repairability import training as training
    from repairability.allocation import Allocation as Allocation
    from repairability.calibration import CalibrationSet as CalibrationSet
    from repairability.checkup import Checkup as Checkup
    from repairability.checkup import doctor as doctor
    from repairability.comparison import Agreement as Agreement
    from repairability.comparison import agreement as agreement
    from repairability.curves import Curves as Curves
    from repairability.data import load_data as load_data
    from repairability.deploy import Accelerated as Accelerated
    from repairability.deploy import Compacted as Compacted
    from repairability.deploy import accelerate as accelerate
    from repairability.deploy import compact as compact
    from repairability.deploy import export_onnx as export_onnx
    from repairability.deploy import masked_for_training as masked_for_training
    from repairability.detect import Transition as Transition
    from repairability.detect import find_transition as find_transition
    from repairability.diagnostics import Diagnosis as Diagnosis
    from repairability.diagnostics import diagnose as diagnose
    from repairability.errors import BudgetError as BudgetError
    from repairability.errors import InputError as InputError
    from repairability.errors import MissingExtraError as MissingExtraError
    from repairability.errors import RepairabilityError as RepairabilityError
    from repairability.evaluation import Figures as Figures
    from repairability.evaluation import MeanIoU as MeanIoU
    from repairability.evaluation import Metrics as Metrics
    from repairability.evaluation import Perplexity as Perplexity
    from repairability.evaluation import evaluate as evaluate
    from repairability.masks import Masks as Masks
    from repairability.masks import apply_masks_ as apply_masks_
    from repairability.masks import make_masks as make_masks
    from repairability.models import create_model as create_model
    from repairability.network.discover import prunable_layers as prunable_layers
    from repairability.network.layers import Layer as Layer
    from repairability.network.layers import Layers as Layers
    from repairability.pruning import RECIPES as RECIPES
    from repairability.pruning import PruneConfig as PruneConfig
    from repairability.pruning import PruneResult as PruneResult
    from repairability.pruning import Recipe as Recipe
    from repairability.pruning import get_recipe as get_recipe
    from repairability.pruning import load as load
    from repairability.pruning import prune as prune
    from repairability.pruning import prune_best as prune_best
    from repairability.pruning import prune_many as prune_many
    from repairability.repairs import Repair as Repair
    from repairability.repairs import RepairContext as RepairContext
    from repairability.repairs import choose_masks as choose_masks
    from repairability.repairs import repair_model as repair_model
    from repairability.rules import Rule as Rule
    from repairability.rules import allocate as allocate
    from repairability.scores import Score as Score

__version__ = "0.2.0"

_ROOMS = {
    "": ("models", "training"),
    "checkup": ("Checkup", "doctor"),
    "comparison": ("Agreement", "agreement"),
    "allocation": ("Allocation",),
    "calibration": ("CalibrationSet",),
    "curves": ("Curves",),
    "data": ("load_data",),
    "deploy": ("Accelerated", "Compacted", "accelerate", "compact", "export_onnx", "masked_for_training"),
    "detect": ("Transition", "find_transition"),
    "diagnostics": ("Diagnosis", "diagnose"),
    "errors": ("BudgetError", "InputError", "MissingExtraError", "RepairabilityError"),
    "evaluation": ("Figures", "MeanIoU", "Metrics", "Perplexity", "evaluate"),
    "masks": ("Masks", "apply_masks_", "make_masks"),
    "models": ("create_model",),
    "network.discover": ("prunable_layers",),
    "network.layers": ("Layer", "Layers"),
    "pruning": (
        *("RECIPES", "PruneConfig", "PruneResult", "Recipe", "get_recipe", "load"),
        *("prune", "prune_best", "prune_many"),
    ),
    "repairs": ("Repair", "RepairContext", "choose_masks", "repair_model"),
    "rules": ("Rule", "allocate"),
    "scores": ("Score",),
}
"""Every public name and the room it lives in; those of no room are rooms themselves."""

_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
__all__ = sorted(_ROOM_OF)

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _ROOM_OF:
            from repairability.errors import unknown

            raise AttributeError(str(unknown("name in repairability", name, __all__)), name=name)
        room = _ROOM_OF[name]
        module = importlib.import_module(f"repairability.{room or name}")
        globals()[name] = getattr(module, name) if room else module
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
