"""Training the networks we start from (never part of pruning or repair): SGD with a one-cycle schedule."""

from __future__ import annotations

from repairability.training.digits import TRAINED, check_trained, digits_network
from repairability.training.finetuning import finetune, lower_layers
from repairability.training.recipe import Epoch, TrainConfig, TrainResult

__all__ = [
    "TRAINED",
    "Epoch",
    "TrainConfig",
    "TrainResult",
    "check_trained",
    "digits_network",
    "finetune",
    "lower_layers",
]
