"""A pruned network on its way into the world: cleaned of what is dead, exported, trained on."""

from repairability.deploy.compacting.compact import Compacted, compact

__all__ = ["Compacted", "compact"]
