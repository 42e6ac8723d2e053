"""Training the networks we start from (never part of pruning or repair): SGD with a one-cycle schedule."""

from __future__ import annotations

from repairability.training.digits import TRAINED, cache_folder, digits_network, train_
from repairability.training.finetuning import finetune, lower_layers
from repairability.training.recipe import Epoch, TrainConfig, TrainResult
from repairability.training.steps import augmented

__all__ = [
    "TRAINED",
    "Epoch",
    "TrainConfig",
    "TrainResult",
    "augmented",
    "cache_folder",
    "digits_network",
    "finetune",
    "lower_layers",
    "train_",
]
