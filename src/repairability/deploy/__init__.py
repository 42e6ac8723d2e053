"""A pruned network as a user ships it."""

from repairability.deploy.runtime import Accelerated, accelerate

__all__ = ["Accelerated", "accelerate"]
