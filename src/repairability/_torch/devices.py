"""Devices: one by its name, once it is known to be there."""

from __future__ import annotations

import torch

from repairability.errors import PlaceError, first_line


def device_of(name: str) -> torch.device:
    """A device that holds a number and gives it back; torch's `meta` does not."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise PlaceError(f"device {name!r} is not available here: {first_line(error)}") from error
    return device
