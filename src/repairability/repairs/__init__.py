"""Repairs: what is mended after pruning, without labels, and but for "match" without gradients. One signature, one
registry; names, chains of names ("cr+bn"), or callables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from repairability.errors import InputError
from repairability.naming import name_of, named
from repairability.repairs.affine import AffineRepair
from repairability.repairs.augment import crops, flips
from repairability.repairs.batchnorm import SHORT, BatchNormRepair, recalibrated
from repairability.repairs.chain import Chain
from repairability.repairs.channel import ChannelRepair
from repairability.repairs.choose import choose_masks
from repairability.repairs.match import OutputMatching
from repairability.repairs.model import repair_model
from repairability.repairs.none import NoRepair
from repairability.repairs.reconstruct import BUDGET, Reconstruction
from repairability.repairs.repair import CustomRepair, Repair, RepairContext
from repairability.repairs.response import Response
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
    "rectified": Reconstruction(everything=True, budget=BUDGET, rounds=2),
    "match": OutputMatching(),
    "match-flips": OutputMatching(augment=flips),
    "match-crops": OutputMatching(augment=crops),
}


RepairLike = str | Repair | Callable[[RepairContext], None]
"""What is taken wherever a repair is: a name, a chain of names, a Repair, or a bare function."""


def get_repair(repair: RepairLike) -> Repair:
    """A repair by name or chain of names ("cr+bn"); a bare function is wrapped."""
    if isinstance(repair, Repair):
        return repair
    if callable(repair):
        return CustomRepair(repair, name=name_of(repair))
    names = [name.strip() for name in repair.split("+")] if isinstance(repair, str) else [repair]
    steps = tuple(_step(name) for name in names)
    return steps[0] if len(steps) == 1 else Chain(steps, name="+".join(names))


def _step(name: str) -> Repair:
    """A repair of the registry; "reconstruct@256" fits on 256 images instead of 1,024."""
    plain, at, images = name.partition("@") if isinstance(name, str) else (name, "", "")
    repair = replace(named("repair", plain, REPAIRS), name=name)
    if not at:
        return repair
    if repair.fit is None or not images.isdecimal():
        raise InputError(f"@ and a number of images go with a reconstruction, as in 'reconstruct@256', not {name!r}")
    return replace(repair, images=int(images))  # type: ignore[call-arg]  # whatever fits, fits on so many images


__all__ = [
    "REPAIRS",
    "AffineRepair",
    "BatchNormRepair",
    "Chain",
    "ChannelRepair",
    "NoRepair",
    "OutputMatching",
    "Reconstruction",
    "Repair",
    "RepairContext",
    "RepairLike",
    "Response",
    "Statistics",
    "choose_masks",
    "crops",
    "flips",
    "get_repair",
    "measure_statistics",
    "recalibrated",
    "repair_model",
]
