"""`accelerate`: a pruned network for inference on a CPU, by sparse kernels where they are faster."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as trees

from repairability._torch import check_finite, check_output, copy_of, evaluation_mode_
from repairability._torch import threads as torch_threads
from repairability.deploy.runtime.measures import KERNELS, LayerTime, check_same, timed
from repairability.deploy.runtime.stages import Unreadable
from repairability.errors import InputError, RepairabilityError, first_line, unknown
from repairability.network.batches import Batch, arguments, check_pixels, copied, described, leaves, sample_count
from repairability.network.folding import for_inference
from repairability.tables import Table, percent

if TYPE_CHECKING:
    from repairability.deploy.runtime.engine import Engine


class Accelerated(nn.Module):
    """A network for inference on a CPU, that answers as the one it was made of (to rounding).

    `way`: "planned" (the whole network in the runtime's own layout), "layers" (single layers by the kernels) or "plain"
    (torch alone, which was faster); `reason`: why it is not planned. `layers`: what was measured; `plain_ms` and `ms`:
    the example's batch by torch alone and by this.
    """

    way: str
    reason: str
    layers: list[LayerTime]
    threads: int
    plain_ms: float
    ms: float
    build_seconds: float

    def __init__(self, model: nn.Module, example: Batch, threads: int, kernels: str) -> None:
        super().__init__()
        from repairability.deploy.runtime.engine import Engine  # and with it numba
        from repairability.deploy.runtime.replace import replace_layers_

        begun = time.perf_counter()
        self.threads, self.reason, self._called = threads, "", type(model).__name__
        self.training = False
        plain = evaluation_mode_(copy_of(model)).requires_grad_(False)
        args, kwargs = arguments(plain, example)
        self._engine: Engine | None = None
        with torch.no_grad(), torch_threads(threads):
            self._plain = self._fastest_plain(plain, example)
            expected = self._answer("plain", *args, **kwargs)
            check_output(expected)
            try:
                if not isinstance(example, Tensor):
                    raise Unreadable(f"its input is {described(example)}")
                self._engine = Engine(plain, example, threads, kernels)
                self.way, self.layers = "planned", self._engine.times
            except Unreadable as found:
                self.way, self.reason = "layers", str(found)
                self._network = evaluation_mode_(copy_of(plain))
                self.layers = replace_layers_(
                    self._network, lambda: self._run("replaced", *args, **kwargs), threads, kernels
                )
            _check(self._run(self.way, *args, **kwargs), expected)
            ways = [lambda: self._run("plain", *args, **kwargs), lambda: self._run(self.way, *args, **kwargs)]
            self.plain_ms, self.ms = (1e3 * x for x in timed(ways, seconds=0.3))
        if kernels == "measured" and self.plain_ms < self.ms:
            self.way, self.ms = "plain", self.plain_ms
        self._called += f", accelerated for a batch of {described(example)},"
        self.build_seconds = time.perf_counter() - begun

    def _fastest_plain(self, plain: nn.Module, example: Batch) -> nn.Module:
        """BatchNorm folded, channels last, where it takes images."""
        if isinstance(example, Tensor) and example.dim() == 4:
            return evaluation_mode_(for_inference(plain, example)).requires_grad_(False)
        return plain

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output for a batch of any size; another size of images is planned when it first comes."""
        _check_batch(args[0] if len(args) == 1 and not kwargs else (args, kwargs))
        with torch.no_grad(), torch_threads(self.threads):
            try:
                return self._answer(self.way, *args, **kwargs)
            except Unreadable as found:
                answer = self._answer("plain", *args, **kwargs)
                warnings.warn(f"this shape runs by torch alone, since {found}", stacklevel=2)
                return answer

    def _answer(self, way: str, *args: Any, **kwargs: Any) -> Any:
        """As `_run`; what the network does not take is named."""
        try:
            return self._run(way, *args, **kwargs)
        except (Unreadable, RepairabilityError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            given = (*args, kwargs) if kwargs else args
            batch = described(given[0] if len(given) == 1 else given)
            how = f"{type(error).__name__}: {first_line(error)}"
            raise InputError(f"{self._called} does not take a batch of {batch}: {how}") from error

    def _run(self, way: str, *args: Any, **kwargs: Any) -> Any:
        if way == "planned":
            assert self._engine is not None
            return self._engine(*args, **kwargs)
        args, kwargs = copied((args, kwargs))
        return (self._plain if way == "plain" else self._network)(*args, **kwargs)

    def train(self, mode: bool = True) -> Accelerated:
        if mode:
            raise InputError("an accelerated network is for inference; train the one it was made of")
        return self

    def table(self) -> Table:
        rows = [
            (
                x.name,
                percent(x.sparsity),
                f"{x.dense:.3f}",
                f"{x.sparse:.3f}",
                x.chosen if self.way != "plain" else "plain",
            )
            for x in self.layers
        ]
        faster = (
            f"plain {self.plain_ms:.2f} ms, accelerated {self.ms:.2f} ms: {self.plain_ms / self.ms:.2f} times as fast"
        )
        ways = {
            "planned": "",
            "layers": f"; single layers replaced, since {self.reason}",
            "plain": "; torch alone is faster here, so it runs",
        }
        return Table(
            ("layer", "sparsity", "dense ms", "sparse ms", "chosen"),
            rows,
            caption=f"{faster} ({self.threads} thread{'s' if self.threads > 1 else ''}){ways[self.way]}",
        )

    def to_dict(self) -> dict[str, Any]:
        about = {"way": self.way, "reason": self.reason, "threads": self.threads, "build_seconds": self.build_seconds}
        times = {"plain_ms": self.plain_ms, "ms": self.ms, "speedup": self.plain_ms / self.ms}
        return {**about, **times, "layers": [vars(layer) for layer in self.layers]}

    def __str__(self) -> str:
        return str(self.table())


def accelerate(
    model: nn.Module, example: Batch, *, threads: int | None = None, kernels: str = "measured"
) -> Accelerated:
    """The network for inference on this machine's CPU: layer by layer by a sparse or a dense kernel, whichever is
    faster here, with BatchNorm, activations and additions folded in; its answers are checked against the model's.

    `example` is a batch as the network will get them; batches of other sizes may come, too. `threads`: torch's number
    unless given. `kernels`: "dense" or "sparse" forces one kernel for all layers, to compare.
    """
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    if kernels not in KERNELS:
        raise unknown("choice of kernels", kernels, KERNELS)
    for parameter in model.parameters() if isinstance(model, nn.Module) else ():
        _check_tensor(parameter.detach())
    _check_batch(example)
    if not sample_count(example):
        raise InputError(f"an example holds at least one sample, and this is of {described(example)}")
    check_finite(model)
    return Accelerated(model, example, threads or torch.get_num_threads(), kernels)


def _check_batch(batch: Batch) -> None:
    check_pixels(batch)
    for tensor in leaves(batch):
        _check_tensor(tensor)


def _check_tensor(tensor: Tensor) -> None:
    if tensor.device.type != "cpu":
        raise InputError(f"the runtime is for the CPU; this tensor is on {tensor.device}")
    if tensor.is_floating_point() and tensor.dtype != torch.float32:
        raise InputError(f"the runtime computes in float32; this tensor is {tensor.dtype}")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InputError("an accelerated network has no gradients; give it a tensor without, or use torch.no_grad()")


def _check(given: Any, expected: Any) -> None:
    for x, y in zip(trees.tree_leaves(given), trees.tree_leaves(expected), strict=True):
        if isinstance(y, Tensor) and y.is_floating_point():
            check_same(x, y, "on the example")
