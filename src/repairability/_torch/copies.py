"""The network itself, our copies of it, and shadows: copies that share its parameters."""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import prune

from repairability._torch.threads import take_threads
from repairability.errors import InputError, first_line

Sums = tuple[tuple[float, float], ...]

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
    take_threads()
    with torch.inference_mode(False):
        return _copied(unwrapped(model), {})


def shadow_of(model: nn.Module, *, writing: bool) -> nn.Module:
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
            elif type(value) in (dict, OrderedDict) and not value:
                memo[id(value)] = type(value)()  # a module's twelve empty tables of hooks: half of a copy's time
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


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers with running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
    }


def normalises_by_batch(model: nn.Module) -> bool:
    """Whether a BatchNorm has no statistics of its own, so that a sample's answer hangs on those beside it."""
    return any(isinstance(module, _BatchNorm) and module.running_mean is None for module in model.modules())


def state_digest(model: nn.Module) -> str:
    """A hash of every weight and buffer, with their names."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def state_sums(model: nn.Module) -> Sums:
    """Sum and norm of every weight and buffer, by which a network is known again in a fraction of a hash's time."""
    made = [x for x in model.state_dict().values() if isinstance(x, Tensor) and not is_lazy(x)]
    numbers = [x.detach().cpu().double() for x in made if x.is_floating_point()]
    return tuple((float(x.sum()), float(x.norm())) for x in numbers)


def same_sums(some: Sums, other: Sums) -> bool:
    """Up to their last digits, which hang on the number of threads and on how the weights lie in memory."""
    pairs = [(x, y, norm) for (a, norm), (b, its) in zip(some, other, strict=False) for x, y in ((a, b), (norm, its))]
    return len(some) == len(other) and all(x == y or abs(x - y) <= 1e-12 * norm for x, y, norm in pairs)
