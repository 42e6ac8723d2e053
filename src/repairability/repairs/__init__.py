"""Repairs: what is mended after pruning, without labels or gradients. One signature, one registry; names, chains of
names ("cr+bn"), or callables.
"""

from __future__ import annotations

from dataclasses import replace

from repairability.errors import InputError, unknown
from repairability.repairs.affine import AffineRepair
from repairability.repairs.batchnorm import SHORT, BatchNormRepair
from repairability.repairs.chain import Chain
from repairability.repairs.channel import ChannelRepair
from repairability.repairs.model import repair_model
from repairability.repairs.none import NoRepair
from repairability.repairs.reconstruct import Reconstruction
from repairability.repairs.response import Repair, Response
from repairability.repairs.statistics import Statistics, measure_statistics

REPAIRS: dict[str, Repair] = {
    "none": NoRepair(),
    "cr": ChannelRepair(),
    "cr-simultaneous": ChannelRepair(sequential=False),
    "cr-median": ChannelRepair(shrinkage=1.0),
    "cr-mean": ChannelRepair(shrinkage=1.0, tau="mean"),
    "cr-small-mean": ChannelRepair(shrinkage=0.01, tau="mean"),
    "affine": AffineRepair(),
    "affine-moments": AffineRepair(match="moments"),
    "bn": BatchNormRepair(),
    "bn-cumulative": BatchNormRepair(momentum=None),
    "bn-short": BatchNormRepair(*SHORT),
    "reconstruct": Reconstruction(),
    "reconstruct-all": Reconstruction(everything=True),
}


def get_repair(repair: str | Repair) -> Repair:
    """A repair by name or chain of names; a callable is its own repair."""
    if not isinstance(repair, str):
        if not callable(repair):
            raise InputError(f"a repair is a name or a callable, not {type(repair).__name__}")
        return repair
    steps = [_named(name.strip()) for name in repair.split("+")]
    return steps[0] if len(steps) == 1 else Chain(tuple(steps))


def _named(name: str) -> Repair:
    """A repair of the registry; "reconstruct@256" fits on 256 images instead of 1,024."""
    plain, at, images = name.partition("@")
    if plain not in REPAIRS:
        raise unknown("repair", plain, REPAIRS)
    known = REPAIRS[plain]
    if not at:
        return known
    if not isinstance(known, Reconstruction) or not images.isdecimal():
        raise InputError(f"@ and a number of images go with a reconstruction, as in 'reconstruct@256', not {name!r}")
    return replace(known, images=int(images))


__all__ = [
    "REPAIRS",
    "AffineRepair",
    "BatchNormRepair",
    "Chain",
    "ChannelRepair",
    "NoRepair",
    "Reconstruction",
    "Repair",
    "Response",
    "Statistics",
    "get_repair",
    "measure_statistics",
    "repair_model",
]
