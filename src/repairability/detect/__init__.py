"""find_transition: where recovery will collapse, before any label is seen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn

from repairability.allocation import check_sparsity
from repairability.calibration import HELD_OUT, Images
from repairability.detect.cts import SWEEP, SingleLayers
from repairability.detect.joint import JointNetwork
from repairability.detect.result import Transition
from repairability.detect.verdict import COMPARED
from repairability.errors import InputError, unknown
from repairability.network.batches import Forward
from repairability.pruning import PruneConfig
from repairability.pruning.plan import with_forward
from repairability.rules import RuleLike

REFERENCE = "erk"
RULES_OF = {"cts": (REFERENCE, "rr"), "agreement": COMPARED}
"""The rules that each method compares, unless cts is given another reference."""

METHODS = tuple(RULES_OF)


def find_transition(
    model: nn.Module,
    images: Images,
    *,
    sparsities: Sequence[float] | None = None,
    low: float = 0.90,
    high: float = 0.975,
    reference: RuleLike = REFERENCE,
    method: str = "cts",
    strict: bool = True,
    null: bool = True,
    forward: Forward | None = None,
    config: PruneConfig | None = None,
) -> Transition:
    """Where allocation begins to matter and where recovery ends, from unlabeled images alone.

    `method="cts"` is the paper's score on single layers (one diagnosis; `strict` measures rr at every
    allocation's own sparsities, else it is interpolated). `method="agreement"` prunes and repairs the network at each
    sparsity by three rules and watches its agreement with the dense network on held-out images: dearer, and about the
    joint network. `low`, `high` and `reference` belong to "cts". `null=False` skips the comparison with no information.
    Of the `config`, `grid` says what is measured (without a config: the paper's) and each option goes to the rules that
    take it: `PruneConfig(grid="auto", options={"floor": 0.0})` lets rr and ERK reach more than 97.5 %.
    """
    if method not in METHODS:
        raise unknown("method", str(method), METHODS)
    settings, sweep = with_forward(config or PruneConfig(grid="paper"), forward), _sweep(sparsities)
    if method == "agreement":
        calibration, held_out = settings.calibration(images, model, held_out=HELD_OUT).split()
        return JointNetwork(model, settings, calibration, sweep, held_out).find(null=null)
    if not check_sparsity(low, "low") < check_sparsity(high, "high"):
        raise InputError(f"low must be below high: {low:g}, {high:g}")
    calibration, sweep = settings.calibration(images, model), sweep or SWEEP
    return SingleLayers(model, settings, calibration, sweep, (low, high), reference, strict).find(null=null)


def _sweep(sparsities: Sequence[float] | None) -> tuple[float, ...]:
    """Empty where the detector's own is wanted."""
    points = tuple(check_sparsity(s, "a sweep sparsity") for s in sparsities or ())
    if sparsities is not None and (not points or any(b <= a for a, b in itertools.pairwise(points))):
        raise InputError(f"the sweep must rise and not be empty: {list(points)}")
    return points


__all__ = ["METHODS", "RULES_OF", "Transition", "find_transition"]
