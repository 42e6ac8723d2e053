"""The verb prune."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Option

import repairability as rp
from repairability.cli import options
from repairability.cli.output import show
from repairability.errors import InputError

if TYPE_CHECKING:
    from repairability.tables import Table

DEFAULT, SECONDS = {"rule": "rr", "score": "magnitude", "repair": "cr+bn"}, 600.0
"""What `rp.prune` and `rp.prune_best` do by themselves; a test compares them. Unsaid, they do not contradict --best."""

LABELS = {
    "n_all": "weights in all",
    "count": "images for the statistics",
    "held_out": "images held out for the choice, at most",
    "seconds": "no trial begins after, seconds",
    "out": "writes",
}
"""What the rows of --dry-run are called, where the name in its JSON does not say enough."""


def verb(
    network: options.Network,
    source: options.DataSource,
    choice: options.LayerChoice,
    machine: options.Machine,
    sparsity: float = options.SPARSITY,
    rule: str | None = Option(
        None, "--rule", "-r", help=f"How many weights each layer loses: {options.RULES}, or auto. Default: rr."
    ),
    option: list[str] | None = options.RULE_OPTIONS,
    score: str | None = Option(None, help=f"Which weights go: {options.SCORES}. Default: magnitude."),
    repair: str | None = Option(None, help=f"{options.REPAIRS}, or a chain. Default: cr+bn."),
    best: bool = Option(False, "--best", help="The strongest result without labels: chooses rule, score and repair."),
    seconds: float | None = Option(None, help="With --best: begin nothing new after so long. Default: 600."),
    curves: Path | None = options.CURVES,
    observe: str = options.OBSERVE,
    conditioned_on: str | None = Option(None, help="The repair that rr reckons with. Default: the one applied."),
    count: int = options.COUNT,
    seed: int = options.SEED,
    evaluate: int = Option(0, metavar="N", help="Compare with the dense network on N labeled test images."),
    as_json: bool = options.AS_JSON,
    dry_run: bool = Option(False, "--dry-run", help="Show what would be done; measure and write nothing."),
    out: Path | None = Option(None, metavar="FILE", help="Where to write the pruned model (safetensors)."),
) -> None:
    """Prune MODEL to a sparsity and repair it with unlabeled training images; write the result as a checkpoint.

    --rule auto tries several rules and keeps the network nearest to the dense one (mean KL) on unlabeled images held
    out for that; --best tries the strongest combinations of rule, score and repair, and says what it tried.

    Example: repairability prune digits --weights trained --data digits -s 0.9 --out pruned.safetensors

    Example: repairability prune digits --weights trained --data digits -s 0.95 --best --seconds 60
    """
    from repairability.allocation import check_sparsity
    from repairability.calibration import HELD_OUT

    check_sparsity(sparsity)
    said = {"--rule": rule, "--option": option, "--score": score, "--repair": repair, "--curves": curves}
    limit = _seconds(best, [name for name, value in said.items() if value], seconds)
    given = {"rule": rule, "score": score, "repair": repair}
    way: dict[str, Any] = DEFAULT | {name: value for name, value in given.items() if value}
    settings = {"observe": observe, "conditioned_on": conditioned_on, "count": count, **choice.settings()}
    config = rp.PruneConfig(options=options.rule_options(option), **settings)
    recipes = _recipes(best, **way, given=config.options)
    diagnosis = options.read_diagnosis(curves)
    model = network.build(seed, machine.ready())
    held_out = HELD_OUT if len(recipes) > 1 else 0
    if dry_run:
        plan = _plan(network.model, choice.of(model), sparsity, recipes, curves)
        plan |= {"data": source.data, "seed": seed, "count": count, "held_out": held_out, "seconds": limit, "out": out}
        show(as_json, plan, _plan_table(plan))
        return
    data = source.read()
    if evaluate:
        options.check_classes(model, data, network.model)
    images = options.calibration_images(data, count, seed, held_out)
    if limit is not None:
        result = rp.prune_best(model, images, sparsity=sparsity, seconds=limit, config=config)
    else:
        result = rp.prune(model, images, sparsity=sparsity, curves=diagnosis, config=config, **way)
    networks = {"dense": model, "pruned": result.model} if evaluate else {}
    metrics = {name: rp.evaluate(net, data.test.batches(limit=evaluate)) for name, net in networks.items()}
    if out:
        result.save(out)
    lines = [
        f"{name}: top-1 {100 * x.top1:.2f} % ± {100 * x.standard_error:.2f} % on {x.n:,} images"
        for name, x in metrics.items()
    ]
    evaluation = {"evaluation": {name: x.to_dict() for name, x in metrics.items()}} if metrics else {}
    content = {**result.to_dict(), **evaluation, "out": out}
    tables = [result.trials_table()] if result.trials else []
    show(as_json, content, *tables, result.table(), line="\n".join([*lines, *([f"wrote {out}"] if out else [])]))


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


def _recipes(best: bool, rule: str, score: str, repair: str, given: Mapping[str, Any]) -> Sequence[rp.Recipe]:
    """What is tried. A name nobody knows, and an option that no rule takes, are refused before the network is built."""
    from repairability.pruning import AUTO, BEST
    from repairability.pruning.choose import TRIED_RULES
    from repairability.repairs import get_repair
    from repairability.rules import get_rule, own_options
    from repairability.scores import get_score

    if best:
        return BEST
    get_score(score)
    get_repair(repair)
    rules = TRIED_RULES if rule == AUTO else (rule,)
    recipes = [rp.Recipe(name, score, repair, own_options(name, rules, given)) for name in rules]
    for recipe in recipes:
        get_rule(recipe.rule).check(recipe.options)
    return recipes


def _plan(model: str, layers: rp.Layers, sparsity: float, recipes: Sequence[rp.Recipe], curves: Path | None) -> Any:
    """What would be done, for --dry-run."""
    from repairability.allocation import target_count
    from repairability.rules import get_rule

    measured = str(curves or "measured now, in one pass")
    ways = [{**vars(x), "curves": measured if get_rule(x.rule).works_on_curves(x.options) else None} for x in recipes]
    pruned = target_count(layers.totals.values(), sparsity)
    amounts = {"layers": len(layers), "n_all": layers.n_all, "prunable": layers.total, "pruned": pruned}
    return {"model": model, "sparsity": sparsity, **amounts, "recipes": ways}


def _plan_table(plan: Mapping[str, Any]) -> Table:
    from repairability.tables import Table

    rows: list[tuple[str, str]] = []
    for name, value in plan.items():
        if name == "recipes":
            for number, way in enumerate(value, 1):
                rule = " ".join([way["rule"], *(f"{option}={given}" for option, given in way["options"].items())])
                rule += f" (curves: {way['curves']})" if way["curves"] else ""
                rows.append((f"recipe {number}", f"{rule}, {way['score']}, {way['repair']}"))
        elif value is not None:
            rows.append((LABELS.get(name, name), f"{value:,}" if isinstance(value, int) else str(value)))
    return Table(("dry run", ""), rows)
