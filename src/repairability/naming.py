"""Names or callables: how a name finds its rule, score, repair or solver, and what a callable is called."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from repairability.errors import InputError, shortened, unknown

Thing = TypeVar("Thing")


def named(kind: str, given: object, registry: Mapping[str, Thing]) -> Thing:
    """The registry's thing of this name; a name nobody knows, or what is no name, is an error that says what is."""
    if not isinstance(given, str):
        raise InputError(f"a {kind} is a name or a callable, not {type(given).__name__}")
    if given not in registry:
        raise unknown(kind, given, registry)
    return registry[given]


def name_of(function: object) -> str:
    """What a callable is called in tables and records."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "name", None) or getattr(function, "__name__", None) or type(function).__name__)


@dataclass(frozen=True)
class Named:
    """A thing of a registry: its key there is its name. One that is made by hand is called by its settings."""

    name: str = field(default="", kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", repr(self))


class ByLayer(Mapping[str, Thing]):
    """A mapping from names of layers; a name that nobody knows is an error that says which there are."""

    @abstractmethod
    def by_layer(self) -> Mapping[str, Thing]: ...

    def __getitem__(self, layer: str) -> Thing:
        values = self.by_layer()
        if layer not in values:
            raise unknown("layer", layer, values)
        return values[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_layer())

    def __len__(self) -> int:
        return len(self.by_layer())

    def __getstate__(self) -> dict[str, Any]:
        """To be pickled or copied: views that only read, which cannot be, as what they show."""
        return {name: dict(x) if isinstance(x, MappingProxyType) else x for name, x in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: MappingProxyType(x) if type(x) is dict else x for name, x in state.items()})


_LONGEST = 1000


def layer_name(given: object) -> str:
    """The name of a layer, as a file says it."""
    if not isinstance(given, str) or len(given) > _LONGEST:
        raise InputError(f"a layer has a name of at most {_LONGEST:,} letters, not {shortened(given)}")
    return given


def rows_by_layer(rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The rows of a file by the name of their layer; one without a name, or of a layer that was there, is refused."""
    layers: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        name = layer_name(row["name"])
        if name in layers:
            raise InputError(f"layer {shortened(name)} comes twice")
        layers[name] = row
    return layers
