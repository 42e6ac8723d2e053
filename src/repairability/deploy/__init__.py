"""A pruned network on its way into the world."""

from repairability.deploy.runtime.accelerate import Accelerated, accelerate

__all__ = ["Accelerated", "accelerate"]
