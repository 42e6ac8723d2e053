"""What one call of a BatchNorm in train mode does to its running statistics: seen, and done again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

PLAIN_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Norms that are known to move as `Move` does."""


@dataclass(frozen=True)
class Move:
    """One call of a norm: the statistics of the batch, toward which its running ones go. In train mode a batch is
    normalised by its own statistics, so a batch that comes again gives the same ones, whatever was learned meanwhile.
    """

    norm: _BatchNorm
    mean: Tensor
    var: Tensor

    def do_(self, momentum: float | None) -> None:
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked += 1
        share = 1 / int(norm.num_batches_tracked) if momentum is None else momentum
        for running, own in ((norm.running_mean, self.mean), (norm.running_var, self.var)):
            running.copy_((1 - share) * running.double() + share * own.double())


@contextmanager
def moves_of(norms: Sequence[_BatchNorm]) -> Iterator[list[Move]]:
    """The calls of the norms in this block; their statistics are then as before. With momentum 1 they become the
    batch's in each call.
    """
    before = [(norm, norm.momentum, [buffer.clone() for buffer in norm.buffers()]) for norm in norms]
    moves: list[Move] = []

    def note(norm: _BatchNorm, _inputs: object, _output: object) -> None:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        moves.append(Move(norm, norm.running_mean.clone(), norm.running_var.clone()))

    hooks = [norm.register_forward_hook(note) for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 1.0
        yield moves
    finally:
        for hook in hooks:
            hook.remove()
        for norm, momentum, buffers in before:
            norm.momentum = momentum
            for buffer, was in zip(norm.buffers(), buffers, strict=True):
                buffer.copy_(was)
