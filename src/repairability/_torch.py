"""All borrowing of a model: hooks, modes, the random state. Whatever is borrowed returns in `finally`."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from repairability.errors import InputError, RepairabilityError

OutputHook = Callable[[nn.Module, Tensor, Any], Any]
"""(module, its input, its output) -> None, or another output."""


@contextmanager
def evaluating(model: nn.Module, *, writing: bool = False) -> Iterator[None]:
    """Eval mode and no gradients; each submodule's own mode, the buffers and the random state come back.

    `writing`: of our copy, whose buffers are written meanwhile and stay so.
    """
    buffers = [] if writing else [(buffer, buffer.clone()) for buffer in model.buffers()]  # some count in forward
    try:
        with _modes_kept(model), _random_state_kept(), torch.no_grad():
            model.eval()
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


@contextmanager
def recalibrating_(model: nn.Module, momentum: float | None) -> Iterator[None]:
    """Only the BatchNorm layers of our copy learn statistics (momentum None: the cumulative average after a reset);
    their momentum and every mode come back, the new statistics stay.
    """
    norms = [(norm, norm.momentum) for norm in batch_norms(model).values()]
    try:
        with _modes_kept(model), _random_state_kept(), torch.no_grad():
            model.eval()
            for norm, _ in norms:
                if momentum is None:
                    norm.reset_running_stats()
                norm.momentum = momentum
                norm.train()
            yield
    finally:
        for norm, before in norms:
            norm.momentum = before


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
        for weight in weights:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for weight in weights:
            weight.data = weight.data.contiguous()


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers with running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
    }


def reset_weights_(model: nn.Module, *, seed: int) -> None:
    """Random weights again, in our copy: every module that knows how to begin anew does."""
    with seeded(seed), torch.no_grad():
        for module in model.modules():
            if callable(getattr(module, "reset_parameters", None)):
                module.reset_parameters()  # type: ignore[operator]


def copy_of(model: nn.Module) -> nn.Module:
    """Our own copy, to be changed at will."""
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{type(model).__name__} cannot be copied: {error}") from error


def to_model(batch: Tensor, model: nn.Module) -> Tensor:
    """The batch on the model's device and in its dtype."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return batch.to(parameter.device, parameter.dtype)
    return batch


class Reached(Exception):
    """Raised by a hook that has seen all it wants; the rest of the forward pass is not needed."""


def run(model: nn.Module, batch: Tensor) -> Any:
    """One forward pass (None where a hook ended it); a model that does not take the batch is named with its shape."""
    try:
        return model(batch)
    except Reached:
        return None
    except (RepairabilityError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{type(model).__name__} does not take a batch of shape {tuple(batch.shape)} ({batch.dtype}): {reason}"
        ) from error


def evaluation_mode_(model: nn.Module) -> nn.Module:
    """Put a model of our own making into eval mode."""
    return model.eval()


@contextmanager
def output_hooks(hooks: Mapping[nn.Module, OutputHook]) -> Iterator[None]:
    """Let each hook see its module's input and output (and replace the output); all of them go again, whatever
    happens inside.
    """

    def adapted(hook: OutputHook) -> Callable[..., Any]:
        return lambda module, args, kwargs, output: hook(module, args[0] if args else kwargs["input"], output)

    with ExitStack() as handles:
        for module, hook in hooks.items():
            handles.callback(module.register_forward_hook(adapted(hook), with_kwargs=True).remove)
        yield


@contextmanager
def input_hooks(hooks: Mapping[nn.Module, Callable[[nn.Module, Tensor], None]]) -> Iterator[None]:
    """Let each hook see its module's input before the module runs; all of them go again, whatever happens inside."""

    def adapted(hook: Callable[[nn.Module, Tensor], None]) -> Callable[..., None]:
        return lambda module, args, kwargs: hook(module, args[0] if args else kwargs["input"])

    with ExitStack() as handles:
        for module, hook in hooks.items():
            handles.callback(module.register_forward_pre_hook(adapted(hook), with_kwargs=True).remove)
        yield


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


def state_digest(model: nn.Module) -> str:
    """A hash of every weight and buffer, with their names."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with so many CPU threads; they decide the last bits of a sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
