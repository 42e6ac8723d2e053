"""A batch as the user's loader yields it, a tree of tensors: counted, cut, joined, moved, and its way into a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as trees

from repairability.errors import InputError, RepairabilityError, first_line

Batch = Any
"""A tensor, or a tuple, list or mapping of such, nested as it likes; numbers, texts and None may stand among them."""

Forward = Callable[[nn.Module, Batch], Any]
"""(model, batch) -> output: how a batch goes into a model, where `run` does not guess it."""

LABELS = frozenset({"labels", "label", "targets", "target", "y"})
"""What labels are called in a batch or a signature: a model that need not have them does not get them."""


PROBE = 4
"""Samples that show how a model runs; only where they leave a layer out, the whole batch is asked."""


EMPTY = 100
"""So many batches without a sample in a row, and nobody waits for one any longer."""


class Reached(Exception):
    """Raised by whoever watches a pass and has seen all it wants; the rest of the forward pass is not needed."""


def run(model: nn.Module, batch: Batch, forward: Forward | None = None) -> Any:
    """As `called`, with the same random numbers each time: the same batch, the same output."""
    torch.manual_seed(0)
    return called(model, batch, forward)


def called(model: nn.Module, batch: Batch, forward: Forward | None = None) -> Any:
    """One forward pass (None where somebody ended it).

    Without a `forward`: `model(**batch)` for a mapping, `model(*batch)` for a tuple as far as the signature takes it,
    `model(batch)` otherwise; labels are left out. The model gets a copy, since it may write into what it is given.
    Whatever it raises becomes one error that names it and the batch.
    """
    batch = copied(batch)
    try:
        if forward is not None:
            return forward(model, batch)
        args, kwargs = arguments(model, batch)
        check_pixels(args[0] if len(args) == 1 and not kwargs else (args, kwargs))
        return model(*args, **kwargs)
    except Reached:
        return None
    except (RepairabilityError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        how = f"{type(error).__name__}: {first_line(error)}" if str(error) else type(error).__name__
        raise InputError(f"{type(model).__name__} does not take a batch of {described(batch)}: {how}") from error


def arguments(model: nn.Module, batch: Batch) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """How a batch is handed to a model: (positional, by name)."""
    parameters = _parameters(model)
    if isinstance(batch, Mapping):
        if parameters is None or any(x.kind is x.VAR_KEYWORD for x in parameters):
            known = set(batch) - LABELS
        else:
            needed = {x.name for x in parameters if x.default is x.empty}
            known = {x.name for x in parameters if x.name not in LABELS or x.name in needed}
        taken = {name: value for name, value in batch.items() if name in known}
        if batch and not taken:
            takes = ", ".join(x.name for x in parameters or ()) or "nothing by name"
            raise InputError(f"{type(model).__name__} takes {takes}; the batch has {', '.join(map(str, batch))}")
        return (), taken
    if not isinstance(batch, (tuple, list)) or is_images(batch):
        return (batch,), {}
    return tuple(_by_place(parameters, batch)), {}


def taken(model: nn.Module, batch: Batch) -> Batch:
    """What of a batch a model takes, as a batch."""
    args, kwargs = arguments(model, batch)
    if kwargs:
        return dict(kwargs)
    return args[0] if len(args) == 1 else tuple(args)


def _parameters(model: nn.Module) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return None


def _by_place(parameters: Sequence[inspect.Parameter] | None, items: Sequence[Any]) -> Iterator[Any]:
    """As many items as the signature needs, and of those beyond what is not a label."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [x for x in parameters or () if x.kind in by_place]
    more = parameters is None or any(x.kind is x.VAR_POSITIONAL for x in parameters)
    for i, item in enumerate(items):
        if (
            (i < len(places) and places[i].default is inspect.Parameter.empty)
            or i == 0
            or not (is_label(item) or (places[i].name in LABELS if i < len(places) else not more))
        ):
            yield item
        else:
            return


def not_for_ever(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches as they come; an iterable that yields nothing but empty ones, and perhaps never ends, is refused."""
    empty = 0
    for batch in batches:
        held = [leaf for leaf in leaves(batch) if leaf.dim()]
        empty = 0 if any(map(len, held)) or not held else empty + 1
        if empty == EMPTY:
            raise InputError(f"{EMPTY} batches one after the other hold no sample, as {described(batch)}")
        yield batch


def check_pixels(batch: Batch) -> None:
    """Refuse pixels as files hold them: what a model takes is normalised, and nobody else knows how."""
    for leaf in leaves(batch):
        if leaf.dtype == torch.uint8 and (leaf.dim() > 2 or isinstance(batch, Tensor)):
            raise InputError(f"images must be floating point, normalised as the model wants them, not {leaf.dtype}")


def is_label(item: Any) -> bool:
    """One whole number for each sample, or what is no tensor at all (a detector's list of boxes)."""
    if isinstance(item, Tensor):
        return item.dim() <= 1 and not item.is_floating_point() and item.dtype != torch.bool
    return isinstance(item, (list, tuple)) and bool(item) and not isinstance(item[0], Tensor)


def is_images(batch: Any) -> bool:
    """A list of images of any sizes [C, H, W], as detectors take them."""
    return isinstance(batch, list) and _all_images(batch)


def _all_images(items: Any) -> bool:
    return bool(items) and all(
        isinstance(x, Tensor) and x.dim() == 3 and x.is_floating_point() and x.shape[0] <= 4 for x in items
    )


def is_row(value: Any) -> bool:
    """A list or tuple with an image or a mapping for each sample, inside a batch or in its place."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return bool(value) and (_all_images(value) or all(isinstance(x, Mapping) for x in value))
    return isinstance(value, list) and bool(value) and (is_images(value) or all(isinstance(x, Mapping) for x in value))


def flat(batch: Batch) -> tuple[list[Any], Any]:
    """The values of a batch, one for all samples each, and its structure. A tuple in a batch's place is its items."""
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        parts = [trees.tree_flatten(item, is_leaf=is_row) for item in batch]
        return [value for values, _ in parts for value in values], tuple(structure for _, structure in parts)
    return trees.tree_flatten(batch, is_leaf=is_row)


def unflat(values: Sequence[Any], structure: Any) -> Batch:
    if not isinstance(structure, tuple):
        return trees.tree_unflatten(values, structure)
    left, items = iter(values), []
    for part in structure:
        items.append(trees.tree_unflatten([next(left) for _ in range(part.num_leaves)], part))
    return tuple(items)


def plain(batch: Batch) -> Batch:
    """The batch as a tree of dicts, lists and tuples, its tensors detached and on the CPU."""
    if isinstance(batch, np.ndarray):
        batch = torch.as_tensor(batch)
    if isinstance(batch, Tensor):
        return batch.detach().cpu()
    if isinstance(batch, Mapping):  # transformers' BatchEncoding among them
        return {name: plain(value) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(plain, batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(plain, batch))
    if batch is None or isinstance(batch, (bool, int, float, str)):
        return batch
    raise InputError(
        f"a batch is a tensor, or a tuple, list or mapping of tensors; this one holds a {type(batch).__name__}"
    )


def leaves(batch: Batch) -> list[Tensor]:
    return [leaf for leaf in trees.tree_leaves(batch) if isinstance(leaf, Tensor)]


def sample_count(batch: Batch) -> int:
    """The images of a list; else the length of the first tensor that has one."""
    for value in flat(batch)[0]:
        if is_row(value) or (isinstance(value, Tensor) and value.dim()):
            return len(value)
    raise InputError(f"a batch must hold a tensor [n, ...]; there is none in {described(batch)}")


def to_model(batch: Batch, model: nn.Module) -> Batch:
    """Every tensor on the model's device, those of floating point also in its dtype; ids and masks stay as they are."""
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    if like is None:
        return batch
    if like.is_meta:
        raise InputError(f"{type(model).__name__} is on the meta device and holds no weights to run with")

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(like.device, like.dtype) if leaf.is_floating_point() else leaf.to(like.device)

    return trees.tree_map(moved, batch)


def copied(batch: Batch) -> Batch:
    """For a model that may write into what it is given."""
    return trees.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, batch)


def described(batch: Batch) -> str:
    """Shape and type of what a batch holds, for messages."""
    if isinstance(batch, Tensor):
        return f"shape {tuple(batch.shape)} ({batch.dtype})"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{name}: {described(value)}" for name, value in batch.items()) + "}"
    if isinstance(batch, (list, tuple)):
        more = ", ..." if len(batch) > 4 else ""
        return f"[{', '.join(described(item) for item in batch[:4])}{more}]"
    return type(batch).__name__
