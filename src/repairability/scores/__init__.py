"""Scores: which weights of a layer go, when a given number must. One signature, one registry; names or callables."""

from __future__ import annotations

from repairability.errors import InputError, unknown
from repairability.scores.activation import Activation
from repairability.scores.magnitude import Magnitude
from repairability.scores.score import Score
from repairability.scores.second_order import SecondOrder

SCORES: dict[str, Score] = {
    "magnitude": Magnitude(),
    "activation": Activation(),
    "second_order": SecondOrder(),
}


def get_score(score: str | Score) -> Score:
    """A score by name; a callable is its own."""
    if not isinstance(score, str):
        if not callable(score):
            raise InputError(f"a score is a name or a callable, not {type(score).__name__}")
        return score
    if score not in SCORES:
        raise unknown("score", score, SCORES)
    return SCORES[score]


__all__ = ["SCORES", "Activation", "Magnitude", "Score", "SecondOrder", "get_score"]
