"""Scores: which weights of a layer go, when a given number must. One signature, one registry; names or callables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from repairability.algebra.least_squares import LeastSquares
from repairability.naming import name_of, named
from repairability.scores.activation import Activation
from repairability.scores.alternating import Alternating
from repairability.scores.magnitude import Magnitude
from repairability.scores.score import CustomScore, Score
from repairability.scores.second_order import SecondOrder

SCORES: dict[str, Score] = {
    "magnitude": Magnitude(),
    "activation": Activation(),
    "second_order": SecondOrder(),
    "alternating": Alternating(),
}

ScoreLike = str | Score | Callable[[LeastSquares, int], Tensor]
"""What is taken wherever a score is: its name, a Score, or a bare function."""


def get_score(score: ScoreLike) -> Score:
    """A score by name; a bare function is wrapped."""
    if isinstance(score, Score):
        return score
    if callable(score):
        return CustomScore(score, name=name_of(score))
    return replace(named("score", score, SCORES), name=score)


__all__ = ["SCORES", "Activation", "Alternating", "Magnitude", "Score", "ScoreLike", "SecondOrder", "get_score"]
