"""Forward passes that halt at chosen layers: the dense and the repaired network, advanced side by side.

Each batch's pass runs in a thread of its own and stands still at a layer until it is told to go on, so every layer's
input is computed once, whatever the model's code looks like, and with the weights that the layers before it have by
then. Each thread computes alone, and as many run at once as the process has CPU threads: every pass has its own sums,
so their order is fixed. What is held between two layers is what the passes themselves hold: the live activations of all
batches.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repairability._torch import evaluating, workers
from repairability.network.batches import Batch, Forward, run, sample_count
from repairability.network.calls import Call
from repairability.network.layers import Layers
from repairability.network.trace import Join
from repairability.network.watching import Watching


class _Abandoned(BaseException):
    """Ends a forward pass that nobody wants to go on with."""


@dataclass(frozen=True)
class Halt:
    """Where a stream stands: at a layer (`call`, and `output` if it halts behind it), or at the addition behind one
    (`branch` is the layer's, `other` what it is added to).
    """

    layer: str
    call: Call | None = None
    output: Tensor | None = None
    branch: Tensor | None = None
    other: Tensor | None = None


class Stream:
    """One forward pass of one batch, in a thread."""

    def __init__(
        self,
        network: nn.Module,
        layers: Layers,
        batch: Batch,
        joins: dict[int, Join],
        forward: Forward | None,
        *,
        before: bool,
    ) -> None:
        self._network, self._layers, self._batch, self._joins = network, layers, batch, joins
        self._forward, self._before = forward, before
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._halt: Halt | None = None
        self._error: BaseException | None = None
        self._abandoned = False
        self._past: Collection[str] = ()

    def advance(self, past: Collection[str] = ()) -> Halt | None:
        """Run to the next halt that is not at one of the layers `past`; None where the pass ended."""
        self.go(past)
        return self.halt()

    def go(self, past: Collection[str] = ()) -> None:
        """Begin to advance."""
        self._past = past
        self._go.release()

    def halt(self) -> Halt | None:
        """Where it stands, when it does."""
        self._stopped.acquire()
        if self._error is not None:
            raise self._error
        return self._halt

    def abandon(self) -> None:
        """The pass ends where it stands, or at its next halt."""
        self._abandoned = True
        self._go.release()

    def _stand(self, at: Halt) -> None:
        """Called inside the pass: stand here until told to go on."""
        if at.layer in self._past:
            return
        self._halt = at
        self._stopped.release()
        self._go.acquire()
        if self._abandoned:
            raise _Abandoned
        self._halt = None

    def _product(self, call: Call) -> Tensor:
        if self._before:
            self._stand(Halt(call.layer.name, call))
            return call.compute()
        output = call.compute()
        self._stand(Halt(call.layer.name, call, output))
        return output

    def _addition(self, number: int, operands: tuple[Tensor, Tensor]) -> None:
        join = self._joins.get(number)
        if join is not None:
            self._stand(Halt(join.layer, branch=operands[join.operand], other=operands[1 - join.operand]))

    def run(self) -> None:
        """The pass itself, which waits to be told to begin."""
        self._go.acquire()
        try:
            if not self._abandoned:
                watching = Watching(
                    self._network,
                    self._layers,
                    self._product,
                    samples=sample_count(self._batch),
                    added=self._addition if self._joins else None,
                )
                with torch.no_grad(), watching:
                    run(self._network, self._batch, self._forward)
        except _Abandoned:
            pass
        except BaseException as error:  # handed to whoever advances the stream
            self._error = error
        self._stopped.release()


@contextmanager
def streams(
    model: nn.Module,
    batches: Sequence[Batch],
    layers: Layers,
    joins: dict[int, Join],
    *,
    before: bool,
    forward: Forward | None = None,
) -> Iterator[list[Stream]]:
    """A stream for each batch, halting at each of the layers and at the joins; the passes end with the block.

    `before`: of our copy, halting before each layer, which may then be written. Otherwise behind it, and the model is
    only read.
    """
    if not batches:
        yield []
        return
    running: list[Stream] = []
    with ExitStack() as networks, workers(len(batches)) as pool:
        for batch in batches:  # a network each: what one pass keeps in it is not for another
            network = networks.enter_context(evaluating(model, writing=before))
            running.append(Stream(network, layers.on(network), batch, joins, forward, before=before))
        try:
            try:
                for stream in running:
                    pool.submit(stream.run)
                yield running
            finally:
                _abandon(running)
        finally:  # again: an interrupt may have struck just there, and the pool waits for passes that stand still
            _abandon(running)


def _abandon(running: Sequence[Stream]) -> None:
    for stream in running:
        stream.abandon()


def advance(running: Sequence[Stream], most: int, past: Collection[str] = ()) -> list[Halt | None]:
    """Where each of the streams halts next, at most so many of them under way at once."""
    halts = []
    for i, stream in enumerate(running):
        for begun in running[i and i + most - 1 : i + most]:
            begun.go(past)
        halts.append(stream.halt())
    return halts
