"""find_transition: where recovery will collapse, before any label is seen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn

from repairability.allocation import check_sparsity
from repairability.calibration import Images
from repairability.detect import cts, joint
from repairability.detect.result import Transition
from repairability.errors import InputError, unknown
from repairability.pruning import PruneConfig
from repairability.rules import RuleLike

METHODS = ("cts", "agreement")


def find_transition(
    model: nn.Module,
    images: Images,
    *,
    sparsities: Sequence[float] | None = None,
    low: float = 0.90,
    high: float = 0.975,
    reference: RuleLike = "erk",
    method: str = "cts",
    strict: bool = True,
    null: bool = True,
    config: PruneConfig | None = None,
) -> Transition:
    """Where allocation begins to matter and where recovery ends, from unlabeled images alone.

    `method="cts"` is the paper's score on the diagnosis of single layers (one pass; `strict` measures rr at every
    allocation's own sparsities, else it is interpolated). `method="agreement"` prunes and repairs the network at each
    sparsity by three rules and watches its agreement with the dense network on held-out images: dearer, and about the
    joint network. `low`, `high` and `reference` belong to "cts". `null=False` skips the comparison with no information.
    """
    if method not in METHODS:
        raise unknown("method", str(method), METHODS)
    settings = config or PruneConfig()
    if method == "agreement":
        sweep = _sweep(joint.SWEEP if sparsities is None else sparsities)
        return joint.find_by_agreement(model, images, sweep, settings, refine=sparsities is None, null=null)
    sweep = _sweep(cts.SWEEP if sparsities is None else sparsities)
    if not check_sparsity(low, "low") < check_sparsity(high, "high"):
        raise InputError(f"low must be below high: {low:g}, {high:g}")
    detector = cts.Detector(sweep, (low, high), reference, strict, settings, settings.calibration(images))
    return detector.find(model, settings.layers(model), null=null)


def _sweep(sparsities: Sequence[float]) -> tuple[float, ...]:
    points = tuple(check_sparsity(s, "a sweep sparsity") for s in sparsities)
    if not points or any(b <= a for a, b in itertools.pairwise(points)):
        raise InputError(f"the sweep must rise and not be empty: {list(points)}")
    return points


__all__ = ["METHODS", "Transition", "find_transition"]
