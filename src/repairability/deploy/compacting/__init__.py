"""Exact structural clean-up of a pruned network, on its traced graph."""
