"""A pruned network on its way into the world: cleaned of what is dead, exported, accelerated, trained on."""

from repairability.deploy.compacting.compact import Compacted, compact
from repairability.deploy.onnx import OnnxFile, export_onnx
from repairability.deploy.runtime.accelerate import Accelerated, accelerate
from repairability.deploy.training_masks import masked_for_training

__all__ = ["Accelerated", "Compacted", "OnnxFile", "accelerate", "compact", "export_onnx", "masked_for_training"]
