"""All borrowing of a model: it is unwrapped, copied, run in a shadow of its own; what is borrowed beside it (the random
state, threads) returns in `finally`.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import CellType, FunctionType, MethodType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import prune

from repairability.errors import InputError, first_line

_PRUNED = "_orig"
"""How `torch.nn.utils.prune` ends the name of a parameter that it masks."""


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself: out of DataParallel, DistributedDataParallel and `torch.compile`, which then runs eagerly.

    What cannot be read as a network is refused in one sentence.
    """
    if type(model).__name__ == "ExportedProgram":
        raise InputError("an exported program is a fixed graph, not a network; give the module it was exported from")
    if not isinstance(model, nn.Module):
        raise InputError(f"a model must be a torch.nn.Module, not {type(model).__name__}")
    while isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)) or _is_compiled(model):
        inner = model._modules.get("_orig_mod", model._modules.get("module"))
        assert inner is not None
        model = inner
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(f"{type(model).__name__} is TorchScript, whose code is fixed; give the network it was made of")
    return model


def _is_compiled(module: nn.Module) -> bool:
    return not isinstance(module, torch.jit.ScriptModule) and "_orig_mod" in module._modules


def copy_of(model: nn.Module) -> nn.Module:
    """Our own copy of the network, to be changed at will; masks of `torch.nn.utils.prune` become plain zeros in it."""
    with torch.inference_mode(False):
        return _copied(unwrapped(model), {})


def _shadow_of(model: nn.Module, *, writing: bool) -> nn.Module:
    """A copy that shares its parameters with `model`: modes, hooks, buffers and attributes are its own, so running it
    leaves no trace. `writing`: what is written into the statistics of BatchNorm is seen by both.
    """
    masked = {id(module.get_parameter(f"{name}{_PRUNED}")) for module, name in _masked(model)}
    shared: list[Tensor] = [p for p in model.parameters() if id(p) not in masked and not is_lazy(p)]
    if writing:
        shared += [buffer for norm in batch_norms(model).values() for buffer in norm.buffers(recurse=False)]
    return _copied(model, {id(tensor): tensor for tensor in shared})


def is_lazy(parameter: Tensor) -> bool:
    """Whether it waits for its first forward pass, which then makes it."""
    return isinstance(parameter, (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer))


def _copied(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    for module in model.modules():
        for value in vars(module).values():  # a weight that a hook computes (weight_norm, a mask) cannot be copied
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        copied: nn.Module = copy.deepcopy(model, memo)
    except Exception as error:
        raise InputError(f"{type(model).__name__} cannot be copied: {first_line(error)}") from error
    for module in copied.modules():
        inner = module._modules.get("_orig_mod") if _is_compiled(module) else None
        if inner is not None:
            vars(module)["forward"] = inner.__call__  # a part that is compiled runs eagerly
        forward = vars(module).get("forward")
        if isinstance(forward, FunctionType):  # that somebody wrapped; a function is not copied, what it holds must be
            vars(module)["forward"] = _rebound(forward, memo)
    for module, name in _masked(copied):
        prune.remove(module, name)  # type: ignore[no-untyped-call]
    return copied


def _rebound(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """The function with the copies in place of the modules (and their methods) that it holds."""

    def copied(held: Any) -> Any:
        if isinstance(held, FunctionType):
            return _rebound(held, memo)
        owner = held.__self__ if isinstance(held, MethodType) else held
        return copy.deepcopy(held, memo) if isinstance(owner, nn.Module) and id(owner) in memo else held

    cells = tuple(CellType(copied(cell.cell_contents)) for cell in function.__closure__ or ())
    again = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells or None
    )
    again.__kwdefaults__ = function.__kwdefaults__
    again.__dict__.update(function.__dict__)
    return again


def _masked(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Modules with a mask of `torch.nn.utils.prune`, and the name of the tensor it is on."""
    return [
        (module, name.removesuffix(_PRUNED))
        for module in model.modules()
        if not isinstance(module, torch.jit.ScriptModule)
        for name in list(module._parameters)
        if name.endswith(_PRUNED) and f"{name.removesuffix(_PRUNED)}_mask" in module._buffers
    ]


def masked_names(model: nn.Module) -> list[str]:
    """The layers that come with a mask of `torch.nn.utils.prune`."""
    masked = {id(module) for module, _ in _masked(model)}
    return [name for name, module in model.named_modules() if id(module) in masked]


@contextmanager
def evaluating(model: nn.Module, *, writing: bool = False) -> Iterator[nn.Module]:
    """The network to run instead of `model`, in eval mode, without gradients and autocast: it shares the parameters and
    nothing else, so whatever a forward pass does to modes, buffers and attributes the model never sees, and any number
    of threads may run it at once. The random state comes back.

    `writing`: of our copy, whose parameters and BatchNorm statistics are written meanwhile and stay so.
    """
    with _random_state_lent(), torch.inference_mode(False), torch.no_grad():
        network = _shadow_of(unwrapped(model), writing=writing)
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


def evaluation_mode_(model: nn.Module) -> nn.Module:
    return model.eval()  # one of our own making


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A block whose torch random numbers come from `seed`; the caller's random state is untouched."""
    with _random_state_kept():
        torch.manual_seed(seed)
        yield


class _Lent:
    """The random state while networks run: how many do, in all threads, and what it was before the first."""

    lock = threading.Lock()
    borrowers = 0
    before: ClassVar[list[Tensor]] = []


@contextmanager
def _random_state_lent() -> Iterator[None]:
    """The random state comes back when the last of all threads that run a network is done."""
    with _Lent.lock:
        if not _Lent.borrowers:
            _Lent.before = _random_state()
        _Lent.borrowers += 1
    try:
        yield
    finally:
        with _Lent.lock:
            _Lent.borrowers -= 1
            if not _Lent.borrowers:
                _set_random_state(_Lent.before)


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


def state_digest(model: nn.Module) -> str:
    """A hash of every weight and buffer, with their names."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


_BEGINNING = threading.Lock()
"""While workers begin, the process's number of threads is theirs."""


@contextmanager
def workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads of which each computes alone. Kernels that share their work wait for the slowest thread at every step,
    and beside another busy process that is most of the time; these only wait when all is done.
    """
    begun = threading.Barrier(count + 1)

    def begin() -> None:
        torch.get_num_threads()  # a thread takes over the process's number where it first asks, so ask before
        torch.set_num_threads(1)
        begun.wait()

    pool = ThreadPoolExecutor(count, initializer=begin)
    try:
        with _BEGINNING:
            before = torch.get_num_threads()
            for _ in range(count):
                pool.submit(int)  # a thread each: none is idle before all have begun
            begun.wait()
            torch.set_num_threads(before)  # for threads to come; the workers keep theirs
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with so many CPU threads; they decide the last bits of a sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
