"""A pruned network on its way into the world: cleaned of what is dead, exported, trained on."""

from repairability.deploy.compacting.compact import Compacted, compact
from repairability.deploy.onnx import OnnxFile, export_onnx
from repairability.deploy.training_masks import masked_for_training

__all__ = ["Compacted", "OnnxFile", "compact", "export_onnx", "masked_for_training"]
