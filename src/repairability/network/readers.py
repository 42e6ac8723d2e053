"""The functions of torch that multiply, each with its reader: whose weight it is, and the call as a product."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from repairability.network.calls import Call
from repairability.network.unfold import Geometry

if TYPE_CHECKING:
    from repairability.network.watching import Watching

_PRODUCTS = {"matmul", "__matmul__", "mm", "bmm"}


def _linear(watching: Watching, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    x, weight, bias = _arguments(args, kwargs, ("input", None), ("weight", None), ("bias", None))
    layer = watching.layer_of(weight, by_rows=True)
    return watching.multiplied(layer, x, bias, _of_input(func, args, kwargs, 0, "input"))


def _convolution(watching: Watching, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    x, weight, bias, stride, padding, dilation, groups = _arguments(
        args,
        kwargs,
        *(("input", None), ("weight", None), ("bias", None), ("stride", 1), ("padding", 0), ("dilation", 1)),
        ("groups", 1),
    )
    layer = watching.layer_of(weight, by_rows=True)
    if layer is None:
        return func(*args, **kwargs)
    geometry = Geometry.convolution(weight.shape[2:], stride, padding, dilation, groups)
    return watching.handle(Call(layer, x, bias, geometry, _of_input(func, args, kwargs, 0, "input")))


def _transposed(watching: Watching, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    x, weight, bias, stride, padding, more, groups, dilation = _arguments(
        args,
        kwargs,
        *(("input", None), ("weight", None), ("bias", None), ("stride", 1), ("padding", 0), ("output_padding", 0)),
        *(("groups", 1), ("dilation", 1)),
    )
    layer = watching.layer_of(weight, by_rows=False)
    if layer is None:
        return func(*args, **kwargs)
    geometry = Geometry.transposed(weight.shape[2:], stride, padding, more, groups, dilation)
    return watching.handle(Call(layer, x, bias, geometry, _of_input(func, args, kwargs, 0, "input")))


def _matrix(watching: Watching, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """x @ weight."""
    if not both_tensors(args):
        return func(*args, **kwargs)
    x, weight = args[0], args[1]
    together = watching.of_batch(x, weight) if weight.dim() == 3 else None
    if together is not None:
        return together
    product = _of_input(func, args, kwargs, 0, "input")
    return watching.multiplied(watching.layer_of(weight, by_rows=False), x, None, product)


def _added_matrix(watching: Watching, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """bias + x @ weight; transformers' Conv1D, whose samples stand below each other."""
    bias, x, weight = _arguments(args, kwargs, ("input", None), ("mat1", None), ("mat2", None))
    scaled = kwargs.get("alpha", 1) != 1 or kwargs.get("beta", 1) != 1
    layer = None if scaled else watching.layer_of(weight, by_rows=False)
    plain_bias = bias if isinstance(bias, Tensor) and bias.dim() == 1 else None
    if layer is None or plain_bias is None:
        return func(*args, **kwargs)
    product = _of_input(func, args, kwargs, 1, "mat1")
    return watching.multiplied(layer, x, plain_bias, product, samples=watching.samples)


def _added_batch(watching: Watching, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """terms + x @ weights, a batch of matrices."""
    terms, x, weights = _arguments(args, kwargs, ("input", None), ("batch1", None), ("batch2", None))
    scaled = kwargs.get("alpha", 1) != 1 or kwargs.get("beta", 1) != 1
    together = None if scaled else watching.of_batch(x, weights)
    return func(*args, **kwargs) if together is None else terms + together


def _grouped(watching: Watching, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Rows sorted by expert, each group times its expert's matrix: a product for every expert that has rows."""
    x, weights, ends, bias = _arguments(args, kwargs, ("mat_a", None), ("mat_b", None), ("offs", None), ("bias", None))
    if bias is not None or ends is None or x.dim() != 2 or weights.data_ptr() not in watching.batches:
        return func(*args, **kwargs)
    bounds = [0, *ends.tolist()]
    products = [x.new_empty(0, weights.shape[2])]
    for i, (start, end) in enumerate(itertools.pairwise(bounds)):
        if start < end:
            rows, weight = x[start:end], weights[i]
            layer = watching.layer_of(weight, by_rows=False)
            products.append(watching.multiplied(layer, rows, None, functools.partial(times, weight=weight)))
    return torch.cat(products)


def _attention(watching: Watching, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """nn.MultiheadAttention: its four projections are products here, and the rest is its own function with identities
    in their place, which change no value.
    """
    given = dict(zip(_ATTENTION, args, strict=False)) | kwargs
    query, key, value, width = given["query"], given["key"], given["value"], given["embed_dim_to_check"]
    packed, bias = given["in_proj_weight"], given["in_proj_bias"]
    if given.get("use_separate_proj_weight"):
        weights = [given[f"{x}_proj_weight"] for x in "qkv"]
    else:
        weights = [packed[i * width : (i + 1) * width] for i in range(3)]
    biases = [None if bias is None else bias[i * width : (i + 1) * width] for i in range(3)]
    out, out_bias = given["out_proj_weight"], given["out_proj_bias"]
    if given.get("static_k") is not None or given.get("static_v") is not None:
        return func(*args, **kwargs)
    axis = {"sample_axis": 1 if query.dim() == 3 else 0}  # [T, N, C]
    given |= {
        name: watching.linear(x, weight, b, **axis)
        for name, x, weight, b in zip(("query", "key", "value"), (query, key, value), weights, biases, strict=True)
    }
    same = torch.eye(width, device=out.device, dtype=out.dtype)
    given |= dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj_weight"), same)
    given |= {"in_proj_weight": None, "in_proj_bias": None, "out_proj_bias": None, "use_separate_proj_weight": True}
    attended, weighting = func(**given)
    return watching.linear(attended, out, out_bias, **axis), weighting


_ATTENTION = (
    *("query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "bias_v"),
    *("add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias"),
)


def _batch_norm(watching: Watching, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    output = func(*args, **kwargs)
    x, mean = _arguments(args, kwargs, ("input", None), ("running_mean", None))
    if watching.norm is not None and mean is not None and mean.data_ptr() in watching.norms:
        watching.norm(watching.norms[mean.data_ptr()], x, output)
    return output


READERS: dict[str, Callable[[Watching, Any, tuple[Any, ...], Any], Any]] = {
    "linear": _linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    **dict.fromkeys(_PRODUCTS, _matrix),
    "addmm": _added_matrix,
    "baddbmm": _added_batch,
    **dict.fromkeys(("grouped_mm", "_grouped_mm"), _grouped),
    "multi_head_attention_forward": _attention,
    "batch_norm": _batch_norm,
}


def _arguments(args: tuple[Any, ...], kwargs: Any, *known: tuple[str, Any]) -> list[Any]:
    """The values of these arguments, by place or by name, or their defaults."""
    return [args[i] if i < len(args) else kwargs.get(name, default) for i, (name, default) in enumerate(known)]


def _of_input(func: Any, args: tuple[Any, ...], kwargs: Any, place: int, name: str) -> Callable[[Tensor], Tensor]:
    """A call as a function of its input, which stands at this place or has this name."""

    def product(x: Tensor) -> Tensor:
        if place < len(args):
            return func(*args[:place], x, *args[place + 1 :], **kwargs)  # type: ignore[no-any-return]
        return func(*args, **{**kwargs, name: x})  # type: ignore[no-any-return]

    return product


def times(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def both_tensors(args: tuple[Any, ...]) -> bool:
    return len(args) >= 2 and isinstance(args[0], Tensor) and isinstance(args[1], Tensor)
