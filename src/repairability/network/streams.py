"""Forward passes that halt at chosen layers: the dense and the repaired network, advanced side by side.

Each batch's pass runs in a thread of its own and stands still at a layer until it is told to go on, so every layer's
input is computed once, whatever the model's code looks like, and with the weights that the layers before it have by
then. One thread runs at a time: the order of all sums is fixed. What is held between two layers is what the passes
themselves hold: the live activations of all batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repairability._torch import evaluating
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
        self._thread = threading.Thread(target=self._pass, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def advance(self) -> Halt | None:
        """Run to the next halt; None where the pass ended."""
        self._go.release()
        self._stopped.acquire()
        if self._error is not None:
            raise self._error
        return self._halt

    def close(self) -> None:
        self._abandoned = True
        self._go.release()
        if self._thread.ident is not None:
            self._thread.join()

    def _stand(self, at: Halt) -> None:
        """Called inside the pass: stand here until told to go on."""
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

    def _pass(self) -> None:
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
    running: list[Stream] = []
    with ExitStack() as stack:
        for batch in batches:  # a network each: what one pass keeps in it is not for another
            network = stack.enter_context(evaluating(model, writing=before))
            running.append(Stream(network, layers.on(network), batch, joins, forward, before=before))
        try:
            for stream in running:
                stream.start()
            yield running
        finally:
            for stream in running:
                stream.close()
