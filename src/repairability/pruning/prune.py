"""prune and prune_many: diagnose, allocate, mask, repair a copy; whatever can be shared is made once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from torch import nn

from repairability._torch import Sums, broken_tensors, check_finite, check_output, copy_of, same_sums, state_sums
from repairability.allocation import Allocation, check_sparsity
from repairability.calibration import CalibrationSet, Images
from repairability.curves import Curves
from repairability.deploy.pricing import multiply_adds
from repairability.diagnostics import Diagnosis
from repairability.errors import InputError
from repairability.masks import apply_masks_
from repairability.network.batches import Forward
from repairability.network.discover import layers_named
from repairability.network.layers import Layers
from repairability.prices import Prices
from repairability.provenance import MemoryGrowth, timed
from repairability.pruning.budget import Budget
from repairability.pruning.plan import Measurement, PruneConfig, measurement_for, with_forward
from repairability.pruning.recipe import Recipe, RecipeLike, get_recipe
from repairability.pruning.result import PruneResult
from repairability.repairs import RepairContext, RepairLike, Statistics, choose_masks, measure_statistics
from repairability.repairs.choose import Chooser
from repairability.rules import RuleLike, get_rule, own_options
from repairability.scores import ScoreLike

AUTO = "auto"
"""In place of a rule: the one of several whose network is nearest to the dense one."""


def prune(
    model: nn.Module,
    images: Images,
    *,
    sparsity: float | None = None,
    speedup: float | None = None,
    budget: str = "weights",
    recipe: RecipeLike = "strong",
    rule: RuleLike | None = None,
    score: ScoreLike | None = None,
    repair: RepairLike | None = None,
    curves: Diagnosis | Curves | None = None,
    forward: Forward | None = None,
    config: PruneConfig | None = None,
) -> PruneResult:
    """Prune a copy of `model` to `sparsity` and repair it, with nothing but unlabeled images.

    `images` are what the model takes: a tensor, a tuple, a mapping, or an iterable of such batches; `forward(model,
    batch)` runs one where that is not `model(batch)`, `model(*batch)` or `model(**batch)`.

    `recipe` says how: the name of one of `RECIPES`, or a `Recipe`. Its rule says how many weights each layer loses, its
    score which ones, its repair what is mended afterwards; `rule`, `score` and `repair` replace these parts one by one
    (`Recipe.with_parts`), `config.options` set the options of the rule.

    The first 128 images serve the statistics, up to 2,560 after them BatchNorm recalibration (with fewer it cycles, and
    a warning says so); a reconstruction, and a score that looks at inputs, take the first 1,024. A diagnosis is made
    only if the rule needs one and none is given as `curves`.

    `sparsity` is the share of the prunable weights that goes; with `budget="macs"`, of the multiply-adds with them.
    `speedup=2.0` in its place: twice as fast as the unpruned network, both by `accelerate` on this machine with torch's
    threads, one sample at a time (extra `runtime`).

    In place of a rule a ready `Allocation` is taken, which then says the sparsity. `rule="auto"` tries several rules
    and keeps the network nearest to the dense one: a call of `prune_best`.
    """
    settings = with_forward(config, forward)
    whole = get_recipe(recipe).with_parts(score=score, repair=repair)
    if rule == AUTO:
        from repairability.pruning.choose import choose_rule

        if speedup is not None or budget != "weights":
            raise InputError('rule="auto" chooses for a sparsity of weights: leave speedup and budget out')
        target = _required(sparsity)
        return choose_rule(model, images, sparsity=target, recipe=whole, curves=curves, config=settings)
    way = whole.with_parts(rule=rule, options=settings.options)
    plan = way.rule if isinstance(way.rule, Allocation) else None
    if plan is not None:
        if speedup is not None or budget != "weights":
            raise InputError("the allocation says already what goes: leave speedup and budget out")
        wanted = Budget(_agreed(plan, sparsity))
    else:
        wanted = Budget(_required(sparsity) if speedup is None else sparsity, budget, speedup)
    calibration = settings.calibration(images, model)
    if plan is not None:
        first = next(calibration.batches(model))
        layers = Layers(layers_named(model, plan, batch=first, forward=calibration.forward), plan.n_all)
    else:
        layers = settings.layers(model, calibration)
    return Session(model, layers, calibration, wanted.targets, settings, curves).prune(way, wanted)


def _required(sparsity: float | None) -> float:
    if sparsity is None:
        raise InputError(
            "say how sparse the network shall be: sparsity=0.9, how fast: speedup=2.0, or give an Allocation"
        )
    return check_sparsity(sparsity)


def _agreed(allocation: Allocation, sparsity: float | None) -> float:
    known = allocation.sparsity if allocation.target is None else allocation.target
    if sparsity is not None and check_sparsity(sparsity) != known:
        raise InputError(f"the allocation is for sparsity {known:g}, and sparsity={sparsity:g} was asked for")
    return known


def prune_many(
    model: nn.Module,
    images: Images,
    *,
    sparsities: Sequence[float],
    recipe: RecipeLike = "strong",
    rules: Sequence[RuleLike] | None = None,
    score: ScoreLike | None = None,
    repair: RepairLike | None = None,
    curves: Diagnosis | Curves | None = None,
    forward: Forward | None = None,
    config: PruneConfig | None = None,
) -> Iterator[PruneResult]:
    """`prune` for every sparsity and rule (unsaid, the recipe's own), one after the other; they share one diagnosis and
    the dense statistics.
    """
    settings = with_forward(config, forward)
    targets = [check_sparsity(s) for s in sparsities]
    whole = get_recipe(recipe).with_parts(score=score, repair=repair)
    if rules is None:
        recipes = [whole.with_parts(options=settings.options)]
    else:
        recipes = [whole.with_parts(rule=x, options=own_options(x, rules, settings.options)) for x in rules]
    calibration = settings.calibration(images, model)
    session = Session(model, settings.layers(model, calibration), calibration, targets, settings, curves)
    return _results(session, recipes)


def _results(session: Session, recipes: Sequence[Recipe]) -> Iterator[PruneResult]:
    for recipe in recipes:
        session.curves_for(recipe)  # before the dense statistics, which a diagnosis brings along
    for target in session.targets:
        for recipe in recipes:
            yield session.prune(recipe, Budget(target))


class Session:
    """One network and its images; the diagnoses and the dense statistics that several prunings need are made once."""

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        calibration: CalibrationSet,
        targets: Sequence[float],
        config: PruneConfig,
        curves: Diagnosis | Curves | None = None,
    ) -> None:
        check_finite(model)
        check_output(calibration.few_outputs(model))
        self.model, self.layers, self.calibration = model, layers, calibration
        self.targets, self.config, self.given = targets, config, curves
        self.spent: dict[str, float] = {}
        self._measured: list[tuple[Measurement, Diagnosis]] = []
        self._statistics: Statistics | None = None

    @cached_property
    def _state(self) -> Sums:
        return state_sums(self.model)

    @cached_property
    def macs(self) -> Prices:
        """The multiply-adds of its layers for one sample."""
        batch = next(self.calibration.batches(self.model))
        return multiply_adds(self.model, self.layers, batch, forward=self.calibration.forward)

    def curves_for(self, recipe: Recipe) -> Diagnosis | Curves | None:
        """What the recipe's rule is handed: the curves that were given, or those that it needs."""
        wanted = None if self.given is not None else measurement_for(recipe, self.targets, self.config)
        if wanted is None:
            return self.given
        for measurement, diagnosis in self._measured:
            if measurement == wanted:
                return diagnosis
        with timed(self.spent, "diagnose"):
            diagnosis = wanted.diagnose(self.model, self.calibration, self.layers)
        self._measured.append((wanted, diagnosis))
        return diagnosis

    def _saw(self, diagnosis: Diagnosis) -> bool:
        """Whether it was made of this network in this state."""
        return diagnosis.state is not None and same_sums(diagnosis.state, self._state)

    def statistics(self) -> Statistics:
        """Those of a diagnosis that saw these layers of this network on these images; else of one dense pass."""
        if self._statistics is None:
            with timed(self.spent, "statistics"):
                given = [self.given] if isinstance(self.given, Diagnosis) else []
                for diagnosis in (*given, *(diagnosis for _, diagnosis in self._measured)):
                    known = diagnosis.statistics or {}
                    same = diagnosis.fingerprint == self.calibration.fingerprint and self._saw(diagnosis)
                    if same and set(self.layers.names) <= set(known):
                        self._statistics = known
                        break
                else:
                    self._statistics = measure_statistics(self.model, self.layers, self.calibration)
        return self._statistics

    def prune(self, recipe: Recipe, budget: Budget) -> PruneResult:
        """A pruned and repaired copy, by this recipe."""
        memory = MemoryGrowth()
        (rule, options), score, repair = recipe.parts()
        curves = self.curves_for(recipe)
        statistics = self.statistics() if repair.needs_statistics else {}
        timings = dict(self.spent)
        with timed(timings, "allocate"):
            plan, remarks = budget.allocation(self, rule, curves, options)
        pruned = copy_of(self.model)
        lost = self.layers.subset(name for name in plan if plan.pruned(name)).on(pruned)
        # a score that looks at inputs chooses on the way of the repair, where that goes layer by layer
        chooser = Chooser(score, plan, self.layers) if score.looks_at_inputs and repair.chooses_masks else None
        if chooser is None:
            with timed(timings, "mask"):
                masks = choose_masks(self.model, plan, self.calibration, score=score, layers=self.layers)
                apply_masks_(pruned, masks)
        context = RepairContext(pruned, lost, self.model, self.calibration, statistics, chooser)
        with timed(timings, "repair"):
            if lost:
                repair(context)
                _check_repaired(pruned, self.calibration, repair.name)
        return PruneResult(
            model=pruned,
            allocation=plan,
            masks=masks if chooser is None else chooser.masks(),
            repair=repair.name,
            fingerprint=self.calibration.fingerprint,
            diagnosis=curves if isinstance(curves, Diagnosis) and _used(recipe) else None,
            timings=timings,
            score=score.name,
            recipe=recipe.name,
            memory_mb=memory.megabytes(),
            work=self.macs.saved(plan),
            notes=(
                *remarks,
                *repair.notes(pruned, lost),
                *context.remarks,
                *(f"{x} is not pruned: {y}" for x, y in self.layers.left_out.items()),
            ),
        )


def _check_repaired(pruned: nn.Module, calibration: CalibrationSet, repair: str) -> None:
    """A repair that leaves nan or inf, in the network or in what it puts out, is an error, never a result."""
    for name in broken_tensors(pruned):
        raise InputError(f"repair {repair!r} left nan or inf in {name}: these images do not bear it")
    check_output(calibration.few_outputs(pruned), f"the network that repair {repair!r} left")


def _used(recipe: Recipe) -> bool:
    """Whether the rule looks at curves that are there: it says so, or it is a bare function and says nothing."""
    rule = get_rule(recipe.rule)
    return rule.curves is None or rule.works_on_curves(recipe.options)
