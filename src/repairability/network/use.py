"""How a forward pass uses the parameters: which functions touch them, and which weights it multiplies by."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as trees

from repairability._torch import evaluating, is_lazy
from repairability.network.batches import PROBE, Batch, Forward, run, sample_count, to_model
from repairability.network.calls import Call
from repairability.network.candidates import SHARED, Candidate, candidates, held_by, holders_of
from repairability.network.kinds import LINEAR
from repairability.network.layers import Layer, part_of, tensor_of
from repairability.network.samples import Samples
from repairability.network.watching import Watching


@dataclass
class Use:
    """How a forward pass uses the parameters: by which functions each is touched, how often each layer is multiplied
    by, and which weights are that no module of a known kind owns.
    """

    touched: dict[str, set[str]] = field(default_factory=dict)  # parameter -> functions
    calls: dict[str, int] = field(default_factory=dict)  # layer -> products
    bare: dict[str, Layer] = field(default_factory=dict)

    def why_not(self, layer: Layer) -> str:
        """Why a layer cannot be pruned, by what was seen of it."""
        if "embedding" in self.touched.get(layer.place, ()):
            return f"{SHARED} an embedding"
        if self.calls.get(layer.name):
            return ""
        by = sorted(self._functions(layer))
        if by:
            return f"the model does not multiply by it as it is, but uses it in {', '.join(by[:3])}"
        return "the model never reaches it on these samples"

    def transforms(self, layer: Layer) -> bool:
        """Whether its weight goes into something else than a product."""
        return bool(self._functions(layer))

    def _functions(self, layer: Layer) -> set[str]:
        return self.touched.get(layer.place, set()) - _LOOKS


_LOOKS = {
    *("__get__", "__set__", "__getitem__", "size", "dim", "stride", "numel", "type", "data_ptr", "is_contiguous"),
    *("t", "transpose", "reshape", "view", "to", "chunk", "split", "unbind", "requires_grad_"),
}
"""Functions that only look at a parameter, or at a view of it."""


def observed(network: nn.Module, batch: Batch, forward: Forward | None = None) -> Use:
    """Run a batch once and see how each parameter is used: a few samples, and the whole batch where they leave a
    weight unused.
    """
    batch = to_model(batch, network)
    few = next(Samples((batch,)).split(PROBE))
    use = _observed(network, few, forward)
    if few is not batch and any(use.why_not(x.layer) for x in candidates(network) if not x.why_not):
        use = _observed(network, batch, forward)
    return use


def _observed(model: nn.Module, batch: Batch, forward: Forward | None) -> Use:
    use = Use()
    with evaluating(model) as network:
        parameters = {name: p for name, p in network.named_parameters() if not is_lazy(p) and p.numel()}
        owned = [x.layer for x in candidates(network)]
        free = [x for name, p in parameters.items() if all(y.place != name for y in owned) for x in _bare(name, p)]
        places = {p.data_ptr(): name for name, p in parameters.items()}

        def handle(call: Call) -> Tensor:
            name = call.layer.name
            use.calls[name] = use.calls.get(name, 0) + 1
            if call.layer in free:
                use.bare[name] = call.layer
            return call.compute()

        class Touching(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
                for leaf in trees.tree_leaves((args, kwargs)):
                    if isinstance(leaf, Tensor) and not is_lazy(leaf) and _place(leaf) in places:
                        name = getattr(func, "__name__", "")
                        use.touched.setdefault(places[_place(leaf)], set()).add(name)
                return func(*args, **(kwargs or {}))

        with Touching(), Watching(network, [*owned, *free], handle, samples=sample_count(batch)):
            run(network, batch, forward)
    return use


def _place(tensor: Tensor) -> int:
    """Where it begins in memory; a sparse one nowhere."""
    return tensor.data_ptr() if tensor.layout == torch.strided else -1


def _bare(name: str, parameter: Tensor) -> Iterator[Layer]:
    """A parameter that no module of a known kind owns, as the layers it may turn out to be: a matrix or a batch of
    matrices, [in, out] or [out, in].
    """
    if not parameter.is_floating_point() or parameter.dim() not in (2, 3):
        return
    parts: Iterable[int | None] = [None] if parameter.dim() == 2 else range(len(parameter))
    for part, kind in itertools.product(parts, LINEAR):
        own = name if part is None else f"{name}.{part}"
        yield Layer(own, kind, part_of(parameter, part), parameter=name, part=part)


def bare_candidates(network: nn.Module, use: Use) -> list[Candidate]:
    """What a run found: layers of `network` itself, in definition order."""
    holders, order = holders_of(network), list(dict(network.named_parameters()))
    found = sorted(use.bare.values(), key=lambda x: (order.index(x.place), x.part or 0))
    layers = [replace(x, weight=part_of(tensor_of(network, x.place), x.part)) for x in found]
    return [Candidate(x, held_by(holders, network, x, x.place.rpartition(".")[0])) for x in layers]
