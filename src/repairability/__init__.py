"""repairability: post-training pruning at very high sparsity, without labels, gradients or retraining.

Ask, layer by layer, how much of the damage of pruning a cheap repair can mend; allocate sparsity by the answer.
"""

from repairability import models, training
from repairability.allocation import Allocation
from repairability.calibration import CalibrationSet
from repairability.curves import Curves
from repairability.data import load_data
from repairability.detect import Transition, find_transition
from repairability.diagnostics import Diagnosis, diagnose
from repairability.errors import BudgetError, InputError, MissingExtraError, RepairabilityError
from repairability.evaluation import Agreement, Metrics, agreement, evaluate
from repairability.masks import Masks, apply_masks_, make_masks
from repairability.models import create_model
from repairability.network.layers import Layer, Layers, prunable_layers
from repairability.pruning import PruneConfig, PruneResult, Recipe, load, prune, prune_best, prune_many
from repairability.repairs import Repair, RepairContext, choose_masks, repair_model
from repairability.rules import Rule, allocate
from repairability.scores import Score

__version__ = "0.1.0"

__all__ = [
    "Agreement",
    "Allocation",
    "BudgetError",
    "CalibrationSet",
    "Curves",
    "Diagnosis",
    "InputError",
    "Layer",
    "Layers",
    "Masks",
    "Metrics",
    "MissingExtraError",
    "PruneConfig",
    "PruneResult",
    "Recipe",
    "Repair",
    "RepairContext",
    "RepairabilityError",
    "Rule",
    "Score",
    "Transition",
    "agreement",
    "allocate",
    "apply_masks_",
    "choose_masks",
    "create_model",
    "diagnose",
    "evaluate",
    "find_transition",
    "load",
    "load_data",
    "make_masks",
    "models",
    "prunable_layers",
    "prune",
    "prune_best",
    "prune_many",
    "repair_model",
    "training",
]
