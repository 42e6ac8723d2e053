"""Random numbers by seed; the caller's random state comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from repairability.errors import check_whole

MOST_SEED = 2**63 - 1


def generator_of(seed: int) -> torch.Generator:
    """Random numbers of their own, by seed."""
    return torch.Generator().manual_seed(check_whole(seed, "seed", 0, MOST_SEED))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A block whose torch random numbers come from `seed`; the caller's random state is untouched."""
    with _random_state_kept():
        torch.manual_seed(check_whole(seed, "seed", 0, MOST_SEED))
        yield


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees whether this thread draws random numbers in the block. (The random state does not tell: it is every
    thread's, and a seed that is set there changes it, too.)
    """

    found = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in function.tags:
            defaults = {argument.name: argument.default_value for argument in function._schema.arguments}
            given = {**defaults, **dict(zip(defaults, args, strict=False)), **(kwargs or {})}
            self.found |= given.get("dropout_p") != 0.0  # attention may draw, and is told to leave nothing out
        return function(*args, **(kwargs or {}))


def reset_weights_(model: nn.Module, *, seed: int) -> None:
    """Random weights again, in our copy: every module that knows how to begin anew does."""
    with seeded(seed), torch.no_grad():
        for module in model.modules():
            if callable(getattr(module, "reset_parameters", None)):
                module.reset_parameters()  # type: ignore[operator]


class _Lent:
    """The random state while networks run: who does, in all threads, and what it was before the first."""

    lock = threading.Lock()
    borrowers: ClassVar[set[object]] = set()
    before: ClassVar[list[Tensor]] = []


@contextmanager
def random_state_lent() -> Iterator[None]:
    """The random state comes back when the last of all threads that run a network is done."""
    borrower = object()  # a member, not a number: an interrupt strikes before it is one or after, never between
    try:
        try:
            with _Lent.lock:
                if not _Lent.borrowers:
                    _Lent.before = _random_state()
                _Lent.borrowers.add(borrower)
            yield
        finally:
            _give_back(borrower)
    finally:  # again: an interrupt may have struck just there
        _give_back(borrower)


def _give_back(borrower: object) -> None:
    with _Lent.lock:
        if _Lent.borrowers == {borrower}:
            _set_random_state(_Lent.before)
        _Lent.borrowers.discard(borrower)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    before = _random_state()
    try:
        yield
    finally:
        _set_random_state(before)


def _random_state() -> list[Tensor]:
    """Of the CPU, and of each CUDA device where there is one in use."""
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if in_use else [])]


def _set_random_state(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if states[1:]:
        torch.cuda.set_rng_state_all(states[1:])
