"""Diagnostics: how much damage pruning does to each layer, and how much of it a repair can mend."""

from repairability.diagnostics.diagnose import GRID, diagnose
from repairability.diagnostics.diagnosis import Diagnosis
from repairability.diagnostics.scan import OBSERVE, Scan, scan

__all__ = ["GRID", "OBSERVE", "Diagnosis", "Scan", "diagnose", "scan"]
