"""doctor: what can be pruned in a network, what cannot and why, and what each recipe would do there and cost."""

from repairability.checkup.doctor import doctor
from repairability.checkup.findings import Checkup, ParameterRow, RecipeRow

__all__ = ["Checkup", "ParameterRow", "RecipeRow", "doctor"]
