"""LeastSquares: one layer's weights as a problem, from the moments of what it is given and should give."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from repairability.algebra.conjugate import STEPS, conjugate_on_support
from repairability.algebra.grams import cholesky, solve_on_support
from repairability.algebra.moments import InputMoments
from repairability.algebra.multiply import times

SCARCITY = 100
"""How much a ridge grows with the unknowns per sample (see `LeastSquares.damped`)."""

SLOWER = 20
"""A multiply-add of many small factorisations takes so much longer than one of a large product in float32."""

FEW = 10
"""Conjugate gradients from an answer to nearly the same problem."""


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """One layer's problem: weights for its inputs such that it gives the outputs that are wanted of it.

    weights [G, R, K]: the dense ones. gram [G, K, K], cross [G, K, R], power [G, R]: means of x x', x y', y^2, centred
    where a bias or a BatchNorm takes the mean. square [G, K]: the mean of x^2, never centred. unit [G, R]: what a step
    of each output is worth where it is felt. samples: the values, images times positions, that the means are of.
    blocks: so many neighbouring groups are one, its inputs cut into blocks.
    """

    weights: Tensor
    gram: Tensor
    cross: Tensor
    power: Tensor
    square: Tensor
    unit: Tensor
    samples: int
    blocks: int = 1
    _known: dict[tuple[str, float], list[Tensor]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls, moments: InputMoments, weights: Tensor, unit: Tensor, *, centred: bool, blocks: int = 1
    ) -> LeastSquares:
        gram = moments.gram(centred=centred)
        square = moments.xx.diagonal(dim1=1, dim2=2) / moments.n
        cross, power = moments.cross(centred=centred), moments.power(centred=centred)
        return cls(weights, gram, cross, power, square, unit, moments.n, blocks)

    def toward(self, moments: InputMoments, *, centred: bool) -> LeastSquares:
        """The same inputs, and other outputs that are wanted of them."""
        other = replace(self, cross=moments.cross(centred=centred), power=moments.power(centred=centred))
        for (kind, ridge), known in self._known.items():
            if kind == "damped":
                other._known[kind, ridge] = known
        return other

    def of_filters(self, some: slice) -> LeastSquares:
        """The same problem for some of each group's filters."""
        if some == slice(None):
            return self
        weights, cross = self.weights[:, some], self.cross[:, :, some]
        part = replace(self, weights=weights, cross=cross, power=self.power[:, some], unit=self.unit[:, some])
        for (kind, ridge), known in self._known.items():  # what was computed for all filters serves these
            part._known[kind, ridge] = [x[some] for x in known] if kind == "best" else known
        return part

    def damped(self, group: int, ridge: float) -> Tensor:
        """The Gram [K, K] with ridge (1 + SCARCITY K / n) times its mean diagonal on the diagonal; one that is all zero
        gets ones.

        Of n samples a Gram of K inputs knows its directions to about K / n of its mean diagonal. Where n is not far
        above K, a fit follows that noise: worst at n = K, where it can meet every sample exactly.
        """
        gram = self.gram[group].clone()
        gram.diagonal().add_(self._pull(group, ridge))
        return gram

    def _pull(self, group: int, ridge: float) -> float:
        """What stands on the diagonal for the ridge."""
        diagonal = self.gram[group].diagonal()
        level = float(diagonal.mean())
        return max(ridge * (1 + SCARCITY * len(diagonal) / self.samples), 1e-12) * level if level > 0 else 1.0

    def _damped32(self, group: int, ridge: float) -> Tensor:
        """The same in float32, for products that a search or an iteration makes of it; kept."""
        known = self._known.setdefault(("damped", ridge), [])
        for g in range(len(known), group + 1):
            gram = self.gram[g].float()
            gram.diagonal().add_(self._pull(g, ridge))
            known.append(gram)
        return known[group]

    def error(self, weights: Tensor) -> Tensor:
        """mean |y - x'w|^2 for other weights [G, R, K]: power - 2 c'w + w'G w, per output [G, R]."""
        linear = (weights * self.cross.mT).sum(-1)
        square = ((weights @ self.gram) * weights).sum(-1)
        return (self.power - 2 * linear + square).clamp(min=0)

    def rough_error(self, weights: Tensor, ridge: float) -> Tensor:
        """The same to about 1e-6 of the power, by products in float32: for a curve, not for a fit."""
        linear = (weights * self.cross.mT).sum(-1)
        square = torch.empty_like(linear)
        for g, own in enumerate(weights):
            image = times(own.float(), self._damped32(g, ridge)).double()
            square[g] = ((image - self._pull(g, ridge) * own) * own).sum(-1)
        return (self.power - 2 * linear + square).clamp(min=0)

    def best(self, ridge: float) -> Tensor:
        """The weights [G, R, K] that are best on all inputs, with the ridge toward the dense ones:
        (G + ridge) (w - w_dense) = c - G w_dense.
        """
        if ("best", ridge) not in self._known:
            steps = []
            for g, weights in enumerate(self.weights):
                right = self.cross[g] - self.gram[g] @ weights.mT
                steps.append(torch.cholesky_solve(right, cholesky(self.damped(g, ridge)[None])[0]).mT)
            self._known["best", ridge] = [w + step for w, step in zip(self.weights, steps, strict=True)]
        return torch.stack(self._known["best", ridge])

    def refitted(self, support: Tensor, ridge: float, start: Tensor | None = None, *, steps: int = FEW) -> Tensor:
        """The weights [G, R, K] that are best on their support [G, R, K] and zero outside it, with the ridge toward the
        dense ones: (G_SS + ridge) (w - w_dense) = c_S - G_SS w_dense.

        From `start`, the answer to a problem that differs little, by a few conjugate gradients; without it exactly; but
        the other way where that is much the cheaper one.
        """
        fitted = torch.zeros_like(self.weights)
        for g, weights in enumerate(self.weights):
            kept = weights * support[g]  # [R, K]
            most, slower = (STEPS, 1) if start is None else (steps, SLOWER)  # exact where nothing says otherwise
            if slower * cholesky_work(support[g]) <= most * support[g].numel() * support.shape[2]:
                right = self.cross[g].mT - kept @ self.gram[g]
                fitted[g] = kept + solve_on_support(self.damped(g, ridge), right, support[g])
            else:  # (G_SS + ridge) w = c_S + ridge w_dense
                right = self.cross[g].mT + self._pull(g, ridge) * kept
                begin = kept if start is None else start[g]
                fitted[g] = conjugate_on_support(self._damped32(g, ridge), right, support[g], begin, steps=most)
        return fitted


def cholesky_work(support: Tensor) -> float:
    """Multiply-adds of a factorisation for each filter of [R, K] that lost any weight: n^3 / 6, and to gather its Gram,
    which is slow, as many as 30 n^2. Those that lost none share one.
    """
    sizes = support.sum(1).double()
    sizes = sizes[sizes < support.shape[1]]
    return float((sizes**3 / 6 + 30 * sizes**2).sum())
