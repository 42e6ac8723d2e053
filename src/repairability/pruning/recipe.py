"""Recipe: how a network is pruned, as one value; and the ones that have a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from repairability.errors import InputError
from repairability.naming import named
from repairability.repairs import Repair, RepairLike, get_repair
from repairability.rules import Rule, RuleLike, get_rule
from repairability.scores import Score, ScoreLike, get_score


@dataclass(frozen=True)
class Recipe:
    """A rule says how many weights each layer loses, a score which ones, a repair what is mended; options are the
    rule's own. Names or callables.

    `with_parts` replaces parts. A recipe that is not named is called by its parts.
    """

    rule: RuleLike
    score: ScoreLike
    repair: RepairLike
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = field(default="", compare=False, kw_only=True)
    origin: Recipe | None = field(default=None, compare=False, repr=False, kw_only=True)  # what `with_parts` began with

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", _name_of(self))

    def __str__(self) -> str:
        return self.name

    def with_parts(
        self,
        *,
        rule: RuleLike | None = None,
        score: ScoreLike | None = None,
        repair: RepairLike | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Recipe:
        """The recipe with these parts in place of its own, which its name then says: "strong with rule erk".

        Options belong to a rule: a rule that is named here comes with those that are named here and no others; without
        one, they are set among the recipe's own.
        """
        made = Recipe(
            self.rule if rule is None else rule,
            self.score if score is None else score,
            self.repair if repair is None else repair,
            {**(self.options if rule is None else {}), **(options or {})},
        )
        origin = self.origin or self
        return replace(made, name=_name_after(origin, made), origin=origin)

    def parts(self) -> tuple[tuple[Rule, dict[str, Any]], Score, Repair]:
        """What the names stand for; two recipes of the same parts do the same."""
        return (get_rule(self.rule), dict(self.options)), get_score(self.score), get_repair(self.repair)


RECIPES: dict[str, Recipe] = {
    "strong": Recipe("output", "alternating", "rectified", name="strong"),
    "fast": Recipe("lamp", "magnitude", "cr+bn", name="fast"),
    "paper": Recipe("rr", "magnitude", "cr+bn", name="paper"),
}
"""strong: the best network that is known without labels; what `prune` does when nobody says how. fast: neither least
squares nor a diagnosis, in seconds. paper: what *Relative Repairability* does.
"""

RecipeLike = str | Recipe
"""What is taken wherever a recipe is: its name, or a Recipe of one's own."""


def get_recipe(recipe: RecipeLike) -> Recipe:
    """A recipe by name."""
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str):
        raise InputError(f"a recipe is one of {', '.join(RECIPES)} or a Recipe, not {type(recipe).__name__}")
    return named("recipe", recipe, RECIPES)


def distinct(*recipes: Recipe) -> tuple[Recipe, ...]:
    """Each once, the first of those with the same parts."""
    return tuple(x for i, x in enumerate(recipes) if all(x.parts() != y.parts() for y in recipes[:i]))


def _words(recipe: Recipe) -> tuple[str, str, str]:
    """The parts by name; a rule with its options."""
    (rule, options), score, repair = recipe.parts()
    return " ".join([rule.name, *(f"{name}={value}" for name, value in options.items())]), score.name, repair.name


def _name_of(recipe: Recipe) -> str:
    """Of a recipe that was given none: that of the known recipe with the same parts, else its parts."""
    parts = recipe.parts()
    return next((known.name for known in RECIPES.values() if known.parts() == parts), ", ".join(_words(recipe)))


def _name_after(origin: Recipe, made: Recipe) -> str:
    """What differs from the origin; where nothing of it is left, or it has no name of its own, the parts alone."""
    pairs = zip(("rule", "score", "repair"), _words(made), origin.parts(), made.parts(), strict=True)
    changed = [f"{kind} {words}" for kind, words, theirs, ours in pairs if theirs != ours]
    if not changed:
        return origin.name
    if len(changed) == 3 or origin.name == ", ".join(_words(origin)):
        return made.name
    return f"{origin.name} with {', '.join(changed)}"
