"""All borrowing of a model: hooks, modes, the random state. Whatever is borrowed returns in `finally`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

ForwardHook = Callable[[nn.Module, tuple[Any, ...], Any], Any]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients and the caller's random state; each submodule's own mode comes back."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        with _random_state_kept(), torch.no_grad():
            model.eval()
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def evaluation_mode_(model: nn.Module) -> nn.Module:
    """Put a model of our own making into eval mode."""
    return model.eval()


@contextmanager
def forward_hooks(hooks: Mapping[nn.Module, ForwardHook]) -> Iterator[None]:
    """Register one forward hook per module; all of them go again, whatever happens inside."""
    handles = []
    try:
        for module, hook in hooks.items():
            handles.append(module.register_forward_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A block whose torch random numbers come from `seed`; the caller's random state is untouched."""
    with _random_state_kept():
        torch.manual_seed(seed)
        yield


@contextmanager
def _random_state_kept() -> Iterator[None]:
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
