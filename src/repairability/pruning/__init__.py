"""The main job: a pruned and repaired copy of a network, from nothing but unlabeled images."""

from __future__ import annotations

import os

from torch import nn

from repairability.calibration import Images
from repairability.checkpoints import Checkpoint, load_checkpoint
from repairability.curves import Curves
from repairability.diagnostics import Diagnosis
from repairability.errors import InputError
from repairability.pruning.choose import AUTO, BUDGET, HELD_OUT, prune_auto, prune_best
from repairability.pruning.config import PruneConfig, grid_for, needs_curves
from repairability.pruning.prune import prune_many
from repairability.pruning.result import PruneResult, Trial
from repairability.repairs import Repair
from repairability.rules import Rule
from repairability.scores import Score


def prune(
    model: nn.Module,
    images: Images,
    *,
    sparsity: float,
    rule: str | Rule = "rr",
    score: str | Score = "magnitude",
    repair: str | Repair = "cr+bn",
    curves: Diagnosis | Curves | None = None,
    config: PruneConfig | None = None,
    best: bool = False,
    budget: float = BUDGET,
) -> PruneResult:
    """Prune a copy of `model` to `sparsity` and repair it, with nothing but unlabeled images.

    `rule` says how many weights each layer loses, `score` which ones, `repair` what is mended afterwards. The first 128
    images serve the statistics, up to 2,560 after them BatchNorm recalibration (with fewer it cycles, and a warning
    says so); a reconstruction, and a score that looks at inputs, take the first 1,024. A diagnosis is made only if the
    rule needs one and none is given as `curves`.

    `rule="auto"` tries several rules and keeps the network that is nearest to the dense one (mean KL) on images held
    out for that; `best=True` also chooses score and repair, beginning no trial after `budget` seconds. What was tried
    stands in `result.trials`.
    """
    if best:
        if curves is not None or (rule, score, repair) != ("rr", "magnitude", "cr+bn"):
            raise InputError(
                "best chooses rule, score and repair and measures its own curves; give none of them with it"
            )
        return prune_best(model, images, sparsity=sparsity, config=config, budget=budget)
    if rule == AUTO:
        return prune_auto(model, images, sparsity=sparsity, score=score, repair=repair, curves=curves, config=config)
    (result,) = prune_many(
        model, images, sparsities=[sparsity], rules=[rule], score=score, repair=repair, curves=curves, config=config
    )
    return result


def load(path: str | os.PathLike[str], model: nn.Module) -> Checkpoint:
    """Read what `PruneResult.save` wrote, into a copy of `model` (the dense architecture; it is not changed)."""
    return load_checkpoint(path, model)


__all__ = [
    "AUTO",
    "BUDGET",
    "HELD_OUT",
    "PruneConfig",
    "PruneResult",
    "Trial",
    "grid_for",
    "load",
    "needs_curves",
    "prune",
    "prune_many",
]
