"""What is known of the channels in a traced network: which are the same channel, and which have one value everywhere.

A small abstract interpretation along the graph. A tensor with a channel axis has a `Fact`: for each channel the cell
that it belongs to (what an addition, a depthwise convolution or a normalisation ties together goes or stays together)
and its value, where that is the same at all positions for any input; else NaN. What is not known is opaque: what goes
into it stays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from repairability.network.folding import norm_map

PRODUCTS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_PLAIN = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
PINNED = 0
"""The cell of channels that stay, whatever happens."""


class Cells:
    """A union-find: cells that go or stay together."""

    def __init__(self) -> None:
        self.parents = [PINNED]

    def new(self, count: int) -> np.ndarray:
        first = len(self.parents)
        self.parents += range(first, first + count)
        return np.arange(first, first + count)

    def root(self, cell: int) -> int:
        while self.parents[cell] != cell:
            self.parents[cell] = cell = self.parents[self.parents[cell]]
        return cell

    def roots(self, cells: np.ndarray) -> np.ndarray:
        return np.array([self.root(int(cell)) for cell in cells], dtype=np.int64)

    def tie(self, some: np.ndarray, others: np.ndarray) -> None:
        for a, b in zip(some, others, strict=True):
            low, high = sorted((self.root(int(a)), self.root(int(b))))
            self.parents[high] = low

    def pin(self, cells: np.ndarray) -> None:
        self.tie(cells, np.full(len(cells), PINNED))


@dataclass(frozen=True)
class Fact:
    """Of one tensor: where its channels are, the cell of each, and its value where that is known."""

    axis: int
    cells: np.ndarray
    value: Tensor

    @property
    def known(self) -> Tensor:
        return ~self.value.isnan()

    def with_value(self, value: Tensor) -> Fact:
        """Elementwise: what is unknown stays so."""
        return Fact(self.axis, self.cells, torch.where(self.known, value.to(self.value), math.nan))


@dataclass(frozen=True)
class Product:
    """A convolution or linear layer that can be cut: what it reads of each channel."""

    node: fx.Node
    module: nn.Module
    given: Fact | None  # None: all inputs stay
    made: Fact
    foldable: Tensor  # of each input channel: its value is known and moves into the bias

    @property
    def constant(self) -> Tensor:
        """Of each input channel: its value is known, but zero padding stands beside it."""
        none = torch.zeros(len(self.foldable), dtype=torch.bool)
        return none if self.given is None else self.given.known & ~self.foldable

    @property
    def keeper(self) -> int | None:
        """The constant channel that can stand for all others: w_k' = w_k + sum_i (x_i / x_k) w_i."""
        constant = self.constant
        if self.given is None or int(constant.sum()) < 2:
            return None
        return int(torch.where(constant, self.given.value.abs(), -1.0).argmax())

    def read(self) -> Tensor:
        """[out, in]: where a weight that is not zero reads a channel that does not fold; constants by their keeper."""
        read = reads(self.module.weight) & ~self.foldable  # type: ignore[arg-type]
        if self.keeper is not None:
            some = read[:, self.constant].any(1)
            read[:, self.constant] = False
            read[:, self.keeper] = some
        return read


@dataclass
class Facts:
    """All that is known of a graph."""

    cells: Cells = field(default_factory=Cells)
    of: dict[fx.Node, Fact | None] = field(default_factory=dict)
    products: list[Product] = field(default_factory=list)
    wanted: list[np.ndarray] = field(default_factory=list)  # of each of these at least one cell stays
    opaque: Counter[str] = field(default_factory=Counter)  # what was left because it is not known
    left: dict[str, str] = field(default_factory=dict)  # layers that are left, and why

    def given(self, node: fx.Node, place: int = 0) -> Fact | None:
        """Of what stands at this place among its arguments."""
        first = node.args[place] if len(node.args) > place else None
        return self.of.get(first) if isinstance(first, fx.Node) else None

    def pin(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes:
            fact = self.of.get(node)
            if fact is not None:
                self.cells.pin(fact.cells)


def unknown(count: int) -> Tensor:
    return torch.full((count,), math.nan, dtype=torch.float64)


def cuttable(name: str, module: nn.Module, graph: fx.GraphModule, calls: Counter[str]) -> str:
    """Why a layer's channels cannot be cut; empty where they can."""
    if type(module) not in (*PRODUCTS, *NORMS):
        return f"a {type(module).__name__}"
    if calls[name] > 1:
        return f"called {calls[name]} times"
    if module.state_dict().keys() - _PLAIN:
        return "its parameters are not plain ones"
    mine = {id(p) for p in module.parameters()}
    if sum(id(p) in mine for m in graph.modules() for p in m._parameters.values() if p is not None) > len(mine):
        return "its parameters are shared"
    if module._forward_hooks or module._forward_pre_hooks:
        return "it has hooks"
    if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
        return "it normalises by the batch"
    return ""


def no_borders(module: nn.Module) -> bool:
    """Whether a convolution sees nothing but its input: zeros around it are another value than a constant's."""
    if isinstance(module, nn.Linear):
        return True
    assert isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    if module.padding_mode != "zeros":
        return True
    if isinstance(module.padding, str):
        return module.padding == "valid" or set(module.kernel_size) == {1}
    return not any(module.padding)


def reads(weight: Tensor) -> Tensor:
    """[out, in]: where a filter has a weight that is not zero."""
    used = weight.detach().cpu() != 0
    return used.flatten(2).any(2) if used.dim() > 2 else used


def sums(weight: Tensor) -> Tensor:
    """[out, in]: what a filter makes of a channel that is 1 everywhere."""
    weight = weight.detach().cpu().double()
    return weight.flatten(2).sum(2) if weight.dim() > 2 else weight


def product_value(weight: Tensor, bias: Tensor | None, value: Tensor, foldable: Tensor) -> Tensor:
    """Of each filter: b + sum_c x_c sum_rs w_crs where every channel that it reads folds; else unknown."""
    total = sums(weight) @ torch.where(foldable, value, 0.0)
    if bias is not None:
        total = total + bias.detach().cpu().double()
    return torch.where((reads(weight) & ~foldable).any(1), math.nan, total)


def grouped_value(weight: Tensor, bias: Tensor | None, groups: int, value: Tensor, foldable: Tensor) -> Tensor:
    """`product_value`, group by group."""
    biases = [None] * groups if bias is None else bias.chunk(groups)
    parts = zip(weight.chunk(groups), biases, value.chunk(groups), foldable.chunk(groups), strict=True)
    return torch.cat([product_value(*part) for part in parts])


def norm_value(module: _BatchNorm, value: Tensor) -> Tensor:
    """a x + c; where a is zero, c whatever comes."""
    scale, shift = norm_map(module)
    return torch.where(scale == 0, shift, value * scale + shift)
