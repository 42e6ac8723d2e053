"""Forward passes that halt at chosen layers: the dense and the repaired network, advanced side by side.

Each batch's pass runs in a thread of its own and stands still at a layer until it is told to go on, so every layer's
input is computed once, whatever the model's code looks like, and with the weights that the layers before it have by
then. One thread runs at a time: the order of all sums is fixed. What is held between two layers is what the passes
themselves hold: the live activations of all batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from repairability._torch import evaluating, input_hooks, output_hooks, run
from repairability.network.trace import ADDITIONS, Join, both_tensors

_here = threading.local()
"""The stream whose thread this is; the hooks of one model serve all of its streams."""


class _Abandoned(BaseException):
    """Ends a forward pass that nobody wants to go on with."""


@dataclass(frozen=True)
class Halt:
    """Where a stream stands: before or behind a layer (`tensor` is its input, or its output), or at the addition behind
    one (`tensor` is the layer's branch, `other` what it is added to).
    """

    layer: str
    tensor: Tensor
    other: Tensor | None = None


class Stream:
    """One forward pass of one batch, in a thread."""

    def __init__(self, model: nn.Module, batch: Tensor, joins: dict[int, Join]) -> None:
        self._model, self._batch, self._joins = model, batch, joins
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._halt: Halt | None = None
        self._error: BaseException | None = None
        self._abandoned = self.ended = False
        self._thread = threading.Thread(target=self._pass, daemon=True)
        self._thread.start()

    def advance(self) -> Halt:
        """Run to the next halt."""
        self._go.release()
        self._stopped.acquire()
        if self._error is not None:
            raise self._error
        assert self._halt is not None, "the pass ended before the halt that its trace promised"
        return self._halt

    def close(self) -> None:
        self._abandoned = True
        self._go.release()
        self._thread.join()

    def halt(self, at: Halt) -> None:
        """Called inside the pass: stand here until told to go on."""
        self._halt = at
        self._stopped.release()
        self._go.acquire()
        if self._abandoned:
            raise _Abandoned
        self._halt = None

    def _pass(self) -> None:
        self._go.acquire()
        _here.stream = self
        try:
            if not self._abandoned:
                with torch.no_grad(), _Additions(self, self._joins):
                    run(self._model, self._batch)
        except _Abandoned:
            pass
        except BaseException as error:  # handed to whoever advances the stream
            self._error = error
        self._stopped.release()


class _Additions(TorchFunctionMode):
    """Halts at the additions that join a layer's branch with another."""

    def __init__(self, stream: Stream, joins: dict[int, Join]) -> None:
        super().__init__()
        self._stream, self._joins, self._count = stream, joins, 0

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ADDITIONS and both_tensors(args):
            join = self._joins.get(self._count)
            self._count += 1
            if join is not None:
                self._stream.halt(Halt(join.layer, args[join.operand], args[1 - join.operand]))
        return func(*args, **(kwargs or {}))


@contextmanager
def streams(
    model: nn.Module, batches: Sequence[Tensor], layers: Sequence[str], joins: dict[int, Join], *, before: bool
) -> Iterator[list[Stream]]:
    """A stream for each batch, halting at each of the layers and at the joins; whatever is borrowed comes back.

    `before`: of our copy, halting before each layer, which may then be written. Otherwise behind it, and the model is
    only read.
    """
    names = {model.get_submodule(name): name for name in layers}

    def halting(module: nn.Module, tensor: Tensor, output: Any = None) -> None:
        stream: Stream = _here.stream
        stream.halt(Halt(names[module], tensor if before else output))

    hooked = input_hooks(dict.fromkeys(names, halting)) if before else output_hooks(dict.fromkeys(names, halting))
    with evaluating(model, writing=before), hooked:
        running = [Stream(model, batch, joins) for batch in batches]
        try:
            yield running
        finally:
            for stream in running:
                stream.close()
