"""A choice without labels: prune and repair by several candidates, keep what agrees most with the dense network."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from repairability._torch import channels_last_
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, CalibrationSet, Images
from repairability.curves import Curves
from repairability.diagnostics import Diagnosis
from repairability.errors import BudgetError, InputError
from repairability.evaluation import Agreement, agreement_of_logits, kl_of_logits, logits_of
from repairability.progress import track
from repairability.pruning.config import PruneConfig
from repairability.pruning.prune import prune_many
from repairability.pruning.result import PruneResult, Trial
from repairability.repairs import Repair, get_repair
from repairability.repairs.response import name_of
from repairability.rules import options_of
from repairability.scores import Score, get_score

AUTO = "auto"
RULES = ("erk", "lamp", "global", "rr", "residual")
"""What rule "auto" tries."""

HELD_OUT = 1280
"""Unlabeled images that serve the choice and nothing else; 512 do not tell candidates apart that differ by a point."""

DOUBT = 2.0
"""Standard errors by which a later candidate of `best` must agree better than an earlier one."""

BUDGET = 600.0
"""Seconds within which `best` begins no further trial."""


@dataclass(frozen=True)
class Candidate:
    rule: str
    score: str | Score
    repair: str | Repair
    options: Mapping[str, Any] = field(default_factory=dict)


BEST = (
    Candidate("global", "second_order", "reconstruct-all"),
    Candidate("erk", "second_order", "reconstruct-all", {"floor": 0.0}),
    Candidate("lamp", "second_order", "reconstruct-all"),
    Candidate("residual", "second_order", "reconstruct-all", {"solver": "exact"}),
    Candidate("lamp", "magnitude", "cr+bn"),
)
"""What `best` tries, the most promising first (the study ours/operators_rules): an order that breaks ties."""


def prune_auto(
    model: nn.Module,
    images: Images,
    *,
    sparsity: float,
    score: str | Score,
    repair: str | Repair,
    curves: Diagnosis | Curves | None,
    config: PruneConfig | None,
) -> PruneResult:
    """Every rule of RULES with the same score and repair."""
    candidates = [Candidate(rule, score, repair) for rule in RULES]
    return _chosen(model, images, sparsity, candidates, curves, config or PruneConfig(), budget=None, doubt=0.0)


def prune_best(
    model: nn.Module, images: Images, *, sparsity: float, config: PruneConfig | None, budget: float
) -> PruneResult:
    """The candidates of BEST, as many as the budget allows, and at least one."""
    if not budget > 0:
        raise InputError(f"the budget must be a positive number of seconds, not {budget}")
    return _chosen(model, images, sparsity, BEST, None, config or PruneConfig(), budget=budget, doubt=DOUBT)


def _chosen(
    model: nn.Module,
    images: Images,
    sparsity: float,
    candidates: Sequence[Candidate],
    curves: Diagnosis | Curves | None,
    settings: PruneConfig,
    *,
    budget: float | None,
    doubt: float,
) -> PruneResult:
    """The result with the least mean KL(dense || pruned) on the held-out images. A later candidate must be better by
    `doubt` standard errors of the mean difference, image by image: of two alike, the earlier.
    """
    for name in settings.options:
        if not any(name in options_of(candidate.rule) for candidate in candidates):
            raise InputError(f"none of the rules {', '.join(x.rule for x in candidates)} takes an option {name!r}")
    calibration, judge = _split(model, images, settings)
    begun, longest = time.perf_counter(), 0.0
    trials: list[Trial] = []
    problems: list[BudgetError | InputError] = []
    best: tuple[Tensor, PruneResult] | None = None
    taken = 0
    for candidate in track(candidates, "choosing without labels", len(candidates)):
        names = (candidate.rule, name_of(get_score(candidate.score)), name_of(get_repair(candidate.repair)))
        start = time.perf_counter()
        if budget is not None and trials and start - begun + longest > budget:
            trials.append(Trial(*names, problem=f"not tried: the budget of {budget:g} s is spent"))
            continue
        try:
            (result,) = prune_many(
                model,
                calibration,
                sparsities=[sparsity],
                rules=[candidate.rule],
                score=candidate.score,
                repair=candidate.repair,
                curves=curves,
                config=replace(settings, options=_options(candidate, settings.options)),
            )
        except (BudgetError, InputError) as error:  # it does not reach the target, or knows nothing of the repair
            problems.append(error)
            trials.append(Trial(*names, problem=str(error)))
            continue
        found, each = judge(result.model)
        seconds = time.perf_counter() - start
        longest = max(longest, seconds)
        if best is None or clearly_less(each, best[0], doubt):
            best, taken = (each, result), len(trials)
        trials.append(Trial(*names, kl=found.kl, same=found.same, seconds=seconds))
    if best is None:
        raise problems[0]
    trials[taken] = replace(trials[taken], chosen=True)
    return replace(best[1], trials=tuple(trials))


def clearly_less(ours: Tensor, theirs: Tensor, doubt: float) -> bool:
    """mean(ours - theirs) < -doubt standard errors, over pairs; whatever is finite is less than what is not."""
    if not theirs.isfinite().all():
        return bool(ours.isfinite().all())
    gap = (ours - theirs).double()
    return bool(gap.mean() < -doubt * gap.std() / math.sqrt(len(gap)))


def _options(candidate: Candidate, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the candidate's rule takes, and its own."""
    known = options_of(candidate.rule)
    return {**{name: value for name, value in options.items() if name in known}, **candidate.options}


class _Judge:
    """Agreement with the dense network on images that nothing else has seen."""

    def __init__(self, model: nn.Module, held_out: Any) -> None:
        self.batches = list(held_out.split(250))
        self.dense = logits_of(model, self.batches)

    def __call__(self, model: nn.Module) -> tuple[Agreement, Tensor]:
        """The agreement, and KL(dense || pruned) of each image."""
        with channels_last_(model):
            ours = logits_of(model, self.batches)
        found = agreement_of_logits(zip(self.dense, ours, strict=True))
        return found, kl_of_logits(torch.cat(self.dense), torch.cat(ours))


def _split(model: nn.Module, images: Images, settings: PruneConfig) -> tuple[CalibrationSet, _Judge]:
    """The last images judge, the others calibrate."""
    most = settings.count + BN_BATCHES * BN_BATCH_SIZE + HELD_OUT
    given = CalibrationSet.read(images, count=settings.count, batch_size=settings.batch_size, most=most)
    held = min(HELD_OUT, (len(given) - given.count) // 3)
    if held < 30:
        raise InputError(
            f"a choice without labels holds images out: {len(given)} leave {max(0, held)} beside the {given.count} of "
            f"the statistics; give {given.count + 90} or more"
        )
    calibration = CalibrationSet(given.images[:-held], given.count, given.batch_size)
    return calibration, _Judge(model, given.images[-held:])
