"""The verb prune."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import repairability as rp
from repairability.cli import options
from repairability.cli.output import print_json, print_line, print_table
from repairability.errors import InputError

if TYPE_CHECKING:
    from repairability.pruning.choose import Candidate
    from repairability.tables import Table

RULE, SCORE, REPAIR, SECONDS = "rr", "magnitude", "cr+bn", 600.0
"""What `rp.prune` and `rp.prune_best` do by themselves; a test compares them."""


def verb(
    *,
    network: options.Network,
    source: options.DataSource,
    sparsity: options.Sparsity,
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule",
            "-r",
            help=f"How many weights each layer loses: {', '.join(options.RULES)}, or auto. Default: {RULE}.",
        ),
    ] = None,
    option: options.RuleOptions = None,
    score: Annotated[
        str | None,
        typer.Option("--score", help=f"Which weights go: {', '.join(options.SCORES)}. Default: {SCORE}."),
    ] = None,
    repair: Annotated[
        str | None,
        typer.Option("--repair", help=f"{', '.join(options.REPAIRS)}, or a chain. Default: {REPAIR}."),
    ] = None,
    best: Annotated[
        bool,
        typer.Option("--best", help="The strongest result without labels: chooses rule, score and repair by itself."),
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help=f"With --best: begin nothing new after so long. Default: {SECONDS:g}."),
    ] = None,
    curves: options.Curves = None,
    observe: options.Observe = "layer",
    conditioned_on: Annotated[
        str | None,
        typer.Option("--conditioned-on", help="The repair that rr reckons with. Default: the one that is applied."),
    ] = None,
    count: options.Count = options.COUNT,
    seed: options.Seed = 0,
    choice: options.LayerChoice,
    machine: options.Machine,
    evaluate_on: Annotated[
        int, typer.Option("--evaluate", metavar="N", help="Compare with the dense network on N labeled test images.")
    ] = 0,
    as_json: options.AsJson = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; measure and write nothing.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write the pruned model (safetensors).")
    ] = None,
) -> None:
    """Prune MODEL to a sparsity and repair it with unlabeled training images; write the result as a checkpoint.

    --rule auto tries several rules and keeps the network nearest to the dense one (mean KL) on unlabeled images held
    out for that; --best tries the strongest combinations of rule, score and repair, and says what it tried.

    Example: repairability prune digits --weights trained --data digits -s 0.9 --out pruned.safetensors

    Example: repairability prune digits --weights trained --data digits -s 0.95 --best --seconds 60
    """
    from repairability.pruning import HELD_OUT

    chosen = {"--rule": rule, "--option": option, "--score": score, "--repair": repair, "--curves": curves}
    _check(sparsity, best, [name for name, value in chosen.items() if value], seconds)
    config = rp.PruneConfig(
        observe=observe,
        conditioned_on=conditioned_on,
        options=options.rule_options(option),
        count=count,
        **choice.settings(),
    )
    recipes = _recipes(best, rule or RULE, score or SCORE, repair or REPAIR, config.options)
    diagnosis = options.read_diagnosis(curves)
    model = network.build(seed, machine.ready())
    held_out = HELD_OUT if len(recipes) > 1 else 0
    if dry_run:
        plan = {
            "model": network.model,
            **_layers_and_recipes(choice.of(model), sparsity, recipes, str(curves or "measured now, in one pass")),
            **{"data": source.data, "seed": seed, "count": count, "held_out": held_out},
            "seconds": (seconds or SECONDS) if best else None,
            "out": str(out) if out else None,
        }
        print_json(plan) if as_json else print_table(_plan_table(plan))
        return
    data = source.read()
    if evaluate_on:
        options.check_classes(model, data, network.model)
    images = options.calibration_images(data, count, seed, held_out)
    if best:
        result = rp.prune_best(model, images, sparsity=sparsity, seconds=seconds or SECONDS, config=config)
    else:
        ways: dict[str, Any] = {"rule": rule or RULE, "score": score or SCORE, "repair": repair or REPAIR}
        result = rp.prune(model, images, sparsity=sparsity, **ways, curves=diagnosis, config=config)
    networks = {"dense": model, "pruned": result.model} if evaluate_on else {}
    metrics = {name: rp.evaluate(net, data.test.batches(limit=evaluate_on)) for name, net in networks.items()}
    if out is not None:
        result.save(out)
    if as_json:
        evaluation = {"evaluation": {name: value.to_dict() for name, value in metrics.items()}} if metrics else {}
        print_json({**result.to_dict(), **evaluation, "out": str(out) if out else None})
        return
    if result.trials:
        print_table(result.trials_table())
        print_line()
    print_table(result.table())
    for name, value in metrics.items():
        top1, error = (f"{100 * share:.2f} %" for share in (value.top1, value.standard_error))
        print_line(f"{name}: top-1 {top1} ± {error} on {value.n:,} images")
    if out is not None:
        print_line(f"wrote {out}")


def _check(sparsity: float, best: bool, chosen: Sequence[str], seconds: float | None) -> None:
    """Whatever can be refused is refused before the network is built."""
    from repairability.allocation import check_sparsity

    check_sparsity(sparsity)
    if best and chosen:
        raise InputError(
            f"--best chooses rule, score and repair by itself, and measures its own curves: leave {', '.join(chosen)} out"
        )
    if seconds is not None and not best:
        raise InputError("--seconds is for --best; without it nothing is chosen")
    if seconds is not None and not 0 < seconds < math.inf:
        raise InputError(f"--seconds must be positive and finite, not {seconds:g}")


def _recipes(best: bool, rule: str, score: str, repair: str, given: Mapping[str, Any]) -> Sequence[Candidate]:
    """What is tried; a name nobody knows, and an option that no rule takes, are refused here."""
    from repairability.pruning.choose import AUTO, BEST, RULES, Candidate
    from repairability.repairs import get_repair
    from repairability.rules import get_rule
    from repairability.scores import get_score

    if best:
        return BEST
    rules = RULES if rule == AUTO else (rule,)
    get_score(score)
    get_repair(repair)
    return [Candidate(name, score, repair, given) for name in rules if get_rule(name)]


def _layers_and_recipes(
    layers: rp.Layers, sparsity: float, recipes: Sequence[Candidate], source: str
) -> dict[str, Any]:
    """What would be pruned, and how."""
    from repairability.allocation import target_count
    from repairability.pruning import needs_curves

    rows = [
        {
            "rule": recipe.rule,
            "score": recipe.score,
            "repair": recipe.repair,
            "options": dict(recipe.options),
            "curves": source if needs_curves(recipe.rule, recipe.options) else None,
        }
        for recipe in recipes
    ]
    pruned = target_count(layers.totals.values(), sparsity)
    counts = {"layers": len(layers), "prunable": layers.total, "n_all": layers.n_all, "pruned": pruned}
    return {**counts, "sparsity": sparsity, "recipes": rows}


def _plan_table(plan: Mapping[str, Any]) -> Table:
    from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES
    from repairability.tables import Table, percent

    rows = [
        ("layers", f"{plan['layers']}, {plan['prunable']:,} prunable weights of {plan['n_all']:,}"),
        ("weights that go", f"{plan['pruned']:,} ({percent(plan['sparsity'])})"),
    ]
    for number, recipe in enumerate(plan["recipes"], 1):
        rule = " ".join([recipe["rule"], *(f"{name}={value}" for name, value in recipe["options"].items())])
        rule += f" (curves: {recipe['curves']})" if recipe["curves"] else ""
        if len(plan["recipes"]) == 1:
            rows += [("rule", rule), ("score", recipe["score"]), ("repair", recipe["repair"])]
        else:
            rows.append((f"trial {number}", f"{rule}, {recipe['score']}, {recipe['repair']}"))
    if plan["seconds"]:
        rows.append(("no trial begins after", f"{plan['seconds']:g} s"))
    held_out = f", up to {plan['held_out']:,} for the choice" if plan["held_out"] else ""
    images = f"{plan['count']} for the statistics, up to {BN_BATCHES * BN_BATCH_SIZE:,} for BatchNorm{held_out}"
    rows.append(("images", f"{images} from {plan['data']}, seed {plan['seed']}, unlabeled"))
    rows.append(("writes", plan["out"] or "nothing (no --out)"))
    return Table(("dry run", plan["model"]), rows)
