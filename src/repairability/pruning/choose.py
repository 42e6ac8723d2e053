"""A choice without labels: prune and repair by several recipes, keep what agrees most with the dense network."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from repairability._torch import channels_last_
from repairability.allocation import check_sparsity
from repairability.calibration import HELD_OUT, Images
from repairability.comparison import Agreement, Comparison, agreement_of_outputs, outputs_of
from repairability.curves import Curves
from repairability.diagnostics import Diagnosis
from repairability.errors import BudgetError, InputError
from repairability.network.batches import Forward
from repairability.network.samples import Samples
from repairability.progress import track
from repairability.pruning.budget import Budget
from repairability.pruning.plan import PruneConfig, with_forward
from repairability.pruning.prune import Session
from repairability.pruning.recipe import RECIPES, Recipe, RecipeLike, distinct, get_recipe
from repairability.pruning.result import PruneResult, Trial
from repairability.rules import get_rule

TRIED_RULES = ("erk", "lamp", "global", "rr", "residual")
"""What rule "auto" tries."""

BEST = distinct(
    RECIPES["strong"],
    RECIPES["strong"].with_parts(rule="global", options={"over": "prunable"}),
    RECIPES["strong"].with_parts(rule="erk", options={"floor": 0.0}),
    RECIPES["strong"].with_parts(rule="lamp"),
    RECIPES["strong"].with_parts(rule="residual", options={"solver": "exact"}),
    RECIPES["fast"],
)
"""What `prune_best` tries, the most promising first (the study operators_rules): an order that breaks ties."""

DOUBT = 2.0
"""Standard errors by which a later candidate must agree better than an earlier one."""

SECONDS = 600.0
"""After so long `prune_best` begins no further trial."""


def prune_best(
    model: nn.Module,
    images: Images,
    *,
    sparsity: float,
    candidates: Sequence[RecipeLike] = BEST,
    seconds: float = SECONDS,
    curves: Diagnosis | Curves | None = None,
    forward: Forward | None = None,
    config: PruneConfig | None = None,
    doubt: float = DOUBT,
) -> PruneResult:
    """Prune by each of the candidates and keep the network nearest to the dense one on unlabeled images held out for
    that: the last third, at most 1,280. Near by mean KL(dense || pruned) where logits come out, else by the
    relative squared error of the outputs (`config.output` and `config.distance` say otherwise). What was tried stands
    in `result.trials`.

    No trial begins that would probably end after `seconds`, but one is always made. A later candidate must agree better
    by `doubt` standard errors of the mean difference, image by image: of two alike, the earlier. Candidates share what
    they can: the dense statistics, and a diagnosis where they need the same one. `config.options` go to the rules that
    take them, a candidate's own before these.
    """
    settings, target = with_forward(config, forward), check_sparsity(sparsity)
    if not seconds > 0:
        raise InputError(f"seconds must be a positive number, not {seconds}")
    recipes = [_with_options(get_recipe(candidate), settings) for candidate in candidates]
    if not recipes:
        raise InputError("there is nothing to choose from: candidates is empty")
    for name in settings.options:
        if not any(name in recipe.options for recipe in recipes):
            rules = ", ".join(get_rule(recipe.rule).name for recipe in recipes)
            raise InputError(f"none of the rules {rules} takes an option {name!r}")
    calibration, held_out = settings.calibration(images, model, held_out=HELD_OUT).split()
    session = Session(model, settings.layers(model, calibration), calibration, [target], settings, curves)
    judge = Judge(model, held_out, settings)
    begun, longest = time.perf_counter(), 0.0
    trials: list[Trial] = []
    failures: list[tuple[Trial, BudgetError | InputError]] = []
    best: tuple[Tensor, PruneResult] | None = None
    taken = 0
    for recipe in track(recipes, "choosing without labels", len(recipes)):
        (rule, _), score, repair = recipe.parts()
        names = (rule.name, score.name, repair.name)
        start = time.perf_counter()
        if trials and start - begun + longest > seconds:
            trials.append(Trial(*names, problem=f"not tried: the {seconds:g} seconds are spent"))
            continue
        try:
            result = session.prune(recipe, Budget(target))
            agreement, divergences = judge(result.model)
        except (BudgetError, InputError) as error:  # out of reach, nothing known of the repair, or nan in the network
            trials.append(Trial(*names, problem=str(error)))
            failures.append((trials[-1], error))
            continue
        spent = time.perf_counter() - start
        longest = max(longest, spent)
        if best is None or clearly_less(divergences, best[0], doubt):
            best, taken = (divergences, result), len(trials)
        figures = {"kl": agreement.value, "same": agreement.same, "distance": agreement.distance}
        trials.append(Trial(*names, **figures, seconds=spent))  # type: ignore[arg-type]
    if best is None:
        raise failures[0][1]
    for trial, _ in failures:
        words = f"{trial.rule}, {trial.score}, {trial.repair}"
        warnings.warn(f"the candidate {words} could not be made: {trial.problem}", stacklevel=2)
    trials[taken] = replace(trials[taken], chosen=True)
    return replace(best[1], trials=tuple(trials))


def choose_rule(
    model: nn.Module,
    images: Images,
    *,
    sparsity: float,
    recipe: Recipe,
    curves: Diagnosis | Curves | None,
    config: PruneConfig,
) -> PruneResult:
    """`rule="auto"`: every rule of TRIED_RULES with the recipe's score and repair, the least KL without doubt."""
    candidates = [recipe.with_parts(rule=rule) for rule in TRIED_RULES]
    return prune_best(
        model,
        images,
        sparsity=sparsity,
        candidates=candidates,
        seconds=math.inf,
        curves=curves,
        config=config,
        doubt=0.0,
    )


def _with_options(candidate: Recipe, config: PruneConfig) -> Recipe:
    """The candidate with those of the given options that its rule takes; its own come first."""
    rule = get_rule(candidate.rule)
    known = rule.takes({**config.options, **candidate.options})
    shared = {name: value for name, value in config.options.items() if known is None or name in known}
    return candidate.with_parts(options={**shared, **candidate.options})


def clearly_less(ours: Tensor, theirs: Tensor, doubt: float) -> bool:
    """mean(ours - theirs) < -doubt standard errors, over pairs; whatever is finite is less than what is not."""
    if not theirs.isfinite().all():
        return bool(ours.isfinite().all())
    gap = (ours - theirs).double()
    return bool(gap.mean() < -doubt * gap.std() / math.sqrt(len(gap)))


class Judge:
    """Agreement with the dense network on images that nothing else has seen."""

    def __init__(self, model: nn.Module, held_out: Samples, config: PruneConfig) -> None:
        self.batches, self.config = list(held_out.split(250)), config
        self.comparison = Comparison(config.distance)
        self.dense = self._outputs(model)

    def _outputs(self, model: nn.Module) -> list[Tensor]:
        asked = {"forward": self.config.forward, "output": self.config.output, "comparison": self.comparison}
        return outputs_of(model, self.batches, **asked)  # type: ignore[arg-type]

    def __call__(self, model: nn.Module) -> tuple[Agreement, Tensor]:
        """The agreement, and the distance of each sample."""
        with channels_last_(model):
            ours = self._outputs(model)
        pairs = list(zip(self.dense, ours, strict=True))
        return agreement_of_outputs(pairs, self.comparison), torch.cat([self.comparison(*pair) for pair in pairs])
