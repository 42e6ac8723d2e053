"""How a network runs: in a shadow of its own or, where it is ours, in place; modes, gradients and layout come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from repairability._torch.copies import batch_norms, is_lazy, shadow_of, unwrapped
from repairability._torch.random_state import random_state_lent
from repairability._torch.threads import take_threads


@contextmanager
def evaluating(model: nn.Module, *, writing: bool = False) -> Iterator[nn.Module]:
    """The network to run instead of `model`, in eval mode, without gradients and autocast: it shares the parameters and
    nothing else, so whatever a forward pass does to modes, buffers and attributes the model never sees, and any number
    of threads may run it at once. The random state comes back.

    `writing`: of our copy, whose parameters and BatchNorm statistics are written meanwhile and stay so.
    """
    take_threads()
    with random_state_lent(), torch.inference_mode(False), torch.no_grad():
        network = shadow_of(unwrapped(model), writing=writing)
        network.eval()
        with _full_precision(network):
            yield network


@contextmanager
def recalibrating_(model: nn.Module, momentum: float | None) -> Iterator[nn.Module]:
    """The network to run so that the BatchNorm layers of our copy learn statistics, and only they (momentum None: the
    cumulative average after a reset); everything else of the copy is as before.
    """
    with evaluating(model, writing=True) as network:
        for norm in batch_norms(network).values():
            if momentum is None:
                norm.reset_running_stats()
            norm.momentum = momentum
            norm.train()
        yield network


@contextmanager
def differentiating_(model: nn.Module) -> Iterator[nn.Module]:
    """The network to run so that gradients reach every parameter of our copy; for the rest as in `evaluating`.
    `requires_grad` comes back, and no gradient stays.
    """
    wants = [(p, p.requires_grad) for p in model.parameters() if not is_lazy(p) and p.is_floating_point()]
    try:
        with evaluating(model, writing=True) as network, torch.enable_grad():
            for parameter, _ in wants:
                parameter.requires_grad_(True)
            yield network
    finally:
        for parameter, want in wants:
            parameter.grad = None
            parameter.requires_grad_(want)


@contextmanager
def _full_precision(network: nn.Module) -> Iterator[None]:
    """Without the caller's autocast, which would compute in another precision than the network's own."""
    devices = {parameter.device.type for parameter in network.parameters()} - {"meta"} | {"cpu"}
    with ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def training_(model: nn.Module, frozen: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Train mode, for networks of our own making; the `frozen` submodules stay in eval mode (their BatchNorm keeps its
    statistics) and get no gradients. Modes and `requires_grad` come back.
    """
    wants = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        with _modes_kept(model), torch.enable_grad():
            model.train()
            for module in frozen:
                module.eval()
                module.requires_grad_(False)
            yield
    finally:
        for parameter, want in wants:
            parameter.requires_grad_(want)


@contextmanager
def _modes_kept(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def channels_last_(model: nn.Module) -> Iterator[None]:
    """On a CPU convolutions run up to twice as fast on channels-last weights; our copy's own layout comes back."""
    weights = [p for p in model.parameters() if p.dim() == 4 and p.device.type == "cpu" and p.is_contiguous()]
    try:
        _lay_out_(weights, torch.channels_last)
        yield
    finally:
        _lay_out_(weights, torch.contiguous_format)


def _lay_out_(weights: Iterable[Tensor], layout: torch.memory_format) -> None:
    with torch.inference_mode(False):
        for weight in weights:
            weight.data = weight.data.contiguous(memory_format=layout)


def evaluation_mode_(model: nn.Module) -> nn.Module:
    return model.eval()  # one of our own making
