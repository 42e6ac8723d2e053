"""The verb prune."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer import Option

import repairability as rp
from repairability._files import check_file
from repairability.cli import options
from repairability.cli.checks import check_classes
from repairability.cli.output import Answer
from repairability.errors import InputError
from repairability.tables import Table, percent

DEFAULT, SECONDS = "strong", 600.0
"""What `rp.prune` and `rp.prune_best` do by themselves; a test compares them. Unsaid, they do not contradict --best."""

RECIPES = {
    "strong": "best known without labels: measures at the output, refits; seconds for small networks, else minutes",
    "fast": "neither refit nor diagnosis, in seconds",
    "paper": "rr on a diagnosis, then cr+bn, in seconds",
}
"""Each recipe in a line; the doctor knows better, for a given network."""

HOW = "; ".join(f"{name} ({about})" for name, about in RECIPES.items())

OWN = "Default: the recipe's."

LABELS = {
    "n_all": "weights in all",
    "count": "images for the statistics",
    "held_out": "images held out for the choice, at most",
    "seconds": "no trial begins after, seconds",
    "out": "writes",
    "report": "writes a page",
}
"""What the rows of --dry-run are called, where the name in its JSON does not say enough."""


def verb(
    network: options.Network,
    source: options.DataSource,
    choice: options.LayerChoice,
    machine: options.Machine,
    sparsity: float | None = Option(
        None, "--sparsity", "-s", metavar="S", help="Between 0 and 1: the share of the prunable weights that goes."
    ),
    speedup: float | None = Option(
        None,
        metavar="TIMES",
        help="In place of --sparsity: so many times as fast as the unpruned network, accelerated on this machine.",
    ),
    budget: str = Option("weights", help="What --sparsity is a share of: weights, or macs (their multiply-adds)."),
    recipe: str | None = Option(
        None,
        metavar="NAME",
        help=f"How: {HOW}. Default: {DEFAULT}. The verb doctor estimates what each would take.",
        autocompletion=options.completing(", ".join(RECIPES)),
    ),
    rule: str | None = Option(
        None,
        "--rule",
        "-r",
        help=f"How many weights each layer loses: {options.RULES}, or auto. {OWN}",
        autocompletion=options.completing(f"{options.RULES}, auto"),
    ),
    option: list[str] | None = options.RULE_OPTIONS,
    score: str | None = Option(
        None,
        help=f"Which weights go: {options.SCORES}. {OWN}",
        autocompletion=options.completing(options.SCORES),
    ),
    repair: str | None = Option(
        None,
        help=f"{options.REPAIRS}, or a chain such as cr+bn. {OWN}",
        autocompletion=options.completing(options.REPAIRS),
    ),
    best: bool = Option(False, "--best", help="The strongest result without labels: chooses rule, score and repair."),
    seconds: float | None = Option(None, help="With --best: begin nothing new after so long. Default: 600."),
    curves: Path | None = options.CURVES,
    observe: str = options.OBSERVE,
    conditioned_on: str | None = Option(None, help="The repair that rr reckons with. Default: the one applied."),
    count: int = options.COUNT,
    seed: int = options.SEED,
    evaluate: int = Option(0, metavar="N", help="Compare with the dense network on N labeled test images."),
    dry_run: bool = Option(False, "--dry-run", help="Show what would be done; measure and write nothing."),
    out: Path | None = Option(None, metavar="FILE", help="Where to write the pruned model (safetensors)."),
    format: str = options.FILE_FORMAT,
    values: str = options.VALUE_TYPE,
    report: Path | None = Option(None, metavar="FILE", help="Write a page about the run (one HTML file)."),
) -> Answer:
    """Prune MODEL to a sparsity and repair it with unlabeled training images; write the result as a checkpoint.

    --recipe says how, as one word; --rule, --score and --repair replace single parts of it.

    --rule auto tries several rules and keeps the network nearest to the dense one (mean KL) on unlabeled images held
    out for that; --best tries the strongest combinations of rule, score and repair, and says what it tried.

    Example: repairability prune digits --weights trained --data digits -s 0.9 --out pruned.safetensors

    Example: repairability prune digits --weights trained --data digits -s 0.95 --out small.safetensors --format sparse

    Example: repairability prune digits --weights trained --data digits -s 0.9 --recipe paper --rule erk

    Example: repairability prune digits --weights trained --data digits -s 0.95 --best --seconds 60

    Example: repairability prune digits --weights trained --data digits --speedup 1.5

    Example: repairability prune my_model.py:build --data folder:images -s 0.9 --report page.html
    """
    from repairability.allocation import target_count
    from repairability.calibration import HELD_OUT
    from repairability.checkpoints import DENSE, check_format
    from repairability.models.weights import state_bytes
    from repairability.pruning import BEST
    from repairability.pruning.budget import Budget

    check_file(out)
    check_file(report)
    if sparsity is None and speedup is None:
        raise InputError("say how sparse the network shall be (--sparsity 0.9) or how fast (--speedup 2)")
    Budget(sparsity, budget, speedup)
    if (speedup is not None or budget != "weights") and (best or rule == "auto"):
        raise InputError("--best and --rule auto choose for a sparsity of weights: leave --speedup and --budget out")
    check_format(format, values)
    way: dict[str, Any] = {"recipe": recipe, "rule": rule, "score": score, "repair": repair}
    said = {**{f"--{part}": given for part, given in way.items()}, "--option": option, "--curves": curves}
    limit = _seconds(best, [name for name, value in said.items() if value], seconds)
    way["recipe"] = recipe or DEFAULT
    recipes = BEST if best else _recipes(**way, pairs=option)
    settings = {"observe": observe, "conditioned_on": conditioned_on, "count": count, **choice.settings()}
    config = rp.PruneConfig(options=options.rule_options(option), **settings)
    diagnosis = options.read_diagnosis(curves)
    model = network.build(seed, machine.ready())
    check_file(out, state_bytes(model) if format == DENSE else 0)
    held_out = HELD_OUT if len(recipes) > 1 else 0
    if dry_run:
        layers = choice.of(model)
        known = budget == "weights" and all(_prunes_the_target(recipe) for recipe in recipes)
        pruned = target_count(layers.totals.values(), sparsity) if known and sparsity is not None else None
        plan = {"model": network.model, "sparsity": sparsity, "speedup": speedup}
        plan |= {"budget": None if speedup is not None else budget}
        plan |= {"layers": len(layers), "n_all": layers.n_all}
        plan |= {"parameters": layers.parameters, "coverage": layers.coverage}
        plan |= {"prunable": layers.total, "pruned": pruned, "data": source.data, "seed": seed, "count": count}
        return _plan({**plan, "held_out": held_out, "seconds": limit, "out": out, "report": report}, recipes, curves)
    data = source.read()
    if evaluate:
        data.check_labels("--evaluate")
        check_classes(model, data, network.model)
    images = options.calibration_images(data, count, seed, held_out)
    if limit is not None and sparsity is not None:
        result = rp.prune_best(model, images, sparsity=sparsity, seconds=limit, config=config)
    else:
        goal: dict[str, Any] = {"sparsity": sparsity, "speedup": speedup, "budget": budget}
        result = rp.prune(model, images, **goal, curves=diagnosis, config=config, **way)
    networks = {"dense": model, "pruned": result.model} if evaluate else {}
    metrics = {name: rp.evaluate(net, data.test.batches(limit=evaluate)) for name, net in networks.items()}
    saved = result.save(out, format=format, values=values) if out else None
    lines = [
        f"{name}: top-1 {100 * x.top1:.2f} % ± {100 * x.standard_error:.2f} % on {x.n:,} images"
        for name, x in metrics.items()
    ]
    evaluation = {"evaluation": {name: x.to_dict() for name, x in metrics.items()}} if metrics else {}
    tables = [*([result.trials_table()] if result.trials else []), result.table()]
    files: dict[str, Any] = {"out": out}
    if saved:
        files["file"] = saved.figures()
        lines += [f"wrote {out}", *saved.summary().splitlines()[:2]]
    if report:
        result.report(report, title=f"{network.model}, {percent(result.sparsity)} pruned")
        files["report"] = report
        lines.append(f"wrote {report}")
    return Answer({**result.to_dict(), **evaluation, **files}, [*tables, *lines])


def _seconds(best: bool, said: Sequence[str], seconds: float | None) -> float | None:
    """How long --best may choose, None without it; what it does not go with is refused."""
    if best and said:
        words = "--best chooses rule, score and repair by itself, and measures its own curves"
        raise InputError(f"{words}: leave {', '.join(said)} out")
    if seconds is not None and not best:
        raise InputError("--seconds is for --best; without it nothing is chosen")
    if seconds is not None and not 0 < seconds < math.inf:
        raise InputError(f"--seconds must be positive and finite, not {seconds:g}")
    return (seconds or SECONDS) if best else None


def _recipes(
    recipe: str, rule: str | None, score: str | None, repair: str | None, pairs: list[str] | None
) -> Sequence[rp.Recipe]:
    """What is tried. A name nobody knows, and an option that no rule takes, are refused before the network is built."""
    from repairability.pruning import AUTO
    from repairability.pruning.choose import TRIED_RULES
    from repairability.rules import get_rule

    whole = rp.get_recipe(recipe).with_parts(score=score, repair=repair)
    if rule == AUTO:
        own = options.by_rule(TRIED_RULES, pairs)
        return [whole.with_parts(rule=name, options=taken) for name, taken in own.items()]
    one = whole.with_parts(rule=rule, options=options.rule_options(pairs))
    get_rule(one.rule).check(one.options)
    return [one]


def _prunes_the_target(recipe: rp.Recipe) -> bool:
    """Whether the rule's budget is the target's share of the prunable weights; global's is of all, unless told so."""
    from repairability.rules import get_rule

    return get_rule(recipe.rule).prunable.items() <= dict(recipe.options).items()


def _plan(plan: dict[str, Any], recipes: Sequence[rp.Recipe], curves: Path | None) -> Answer:
    """What would be done, for --dry-run."""
    from repairability.rules import get_rule

    rows = [
        (LABELS.get(name, name), f"{value:,}" if isinstance(value, int) else str(value))
        for name, value in plan.items()
        if value is not None
    ]
    ways = []
    for number, recipe in enumerate(recipes, 1):
        measured = get_rule(recipe.rule).works_on_curves(recipe.options)
        way = {"recipe": recipe.name, **{part: getattr(recipe, part) for part in ("rule", "score", "repair")}}
        way |= {"options": dict(recipe.options)}
        way |= {"curves": str(curves or "measured now, in one pass") if measured else None}
        rule = " ".join([way["rule"], *(f"{option}={given}" for option, given in way["options"].items())])
        rule += f" (curves: {way['curves']})" if measured else ""
        label = "recipe" if len(recipes) == 1 else f"recipe {number}"
        rows.append((label, f"{recipe.name}: rule {rule}, score {way['score']}, repair {way['repair']}"))
        ways.append(way)
    return Answer({**plan, "recipes": ways}, [Table(("dry run", ""), rows)])
