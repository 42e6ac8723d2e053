"""Conjugate gradients on the supports of many filters at once: a product of all filters with the Gram for each step.

For wide filters that keep many weights: a Cholesky factor costs n^3 / 3 for each filter and round, a step of these 2
K^2, and a refit that begins near its end needs few.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repairability.algebra.multiply import times

STEPS = 60
"""At most so many; the first ones mend the directions that carry the energy."""

TOLERANCE = 1e-4
"""What may be left of the right-hand side, in the norm of the diagonal's inverse."""


def conjugate_on_support(gram: Tensor, right: Tensor, support: Tensor, start: Tensor, *, steps: int = STEPS) -> Tensor:
    """x [R, K] with h_SS x_S = right_S on each filter's support S, zero elsewhere, beginning at `start`; in float32,
    preconditioned by the Gram's diagonal. The quadratic x'hx / 2 - right'x falls with every step.
    """
    h, kept = gram.float(), support.to(gram.device)
    inverse = kept / h.diagonal().clamp(min=torch.finfo(torch.float32).tiny)  # [R, K]
    x = (start * kept).float()
    left = (right.float() - times(x, h)) * kept
    goal = TOLERANCE**2 * (right.float().square() * inverse).sum(1, keepdim=True)
    direction = left * inverse
    power = (left * direction).sum(1, keepdim=True)  # [R, 1]
    for _ in range(steps):
        if bool((power <= goal).all()):
            break
        image = times(direction, h) * kept
        curve = (direction * image).sum(1, keepdim=True)
        step = torch.where(curve > 0, power / curve.clamp(min=torch.finfo(torch.float32).tiny), 0.0)
        x += step * direction
        left -= step * image
        scaled = left * inverse
        after = (left * scaled).sum(1, keepdim=True)
        ratio = torch.where(power > 0, after / power.clamp(min=torch.finfo(torch.float32).tiny), 0.0)
        direction, power = scaled + ratio * direction, after
    return x.to(right.dtype)
