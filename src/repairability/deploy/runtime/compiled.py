"""The one import of numba: functions to be compiled, and the vector code of `vectors` as functions it can call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from repairability.errors import MissingExtraError

try:
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic
except ModuleNotFoundError as error:
    raise MissingExtraError("numba", "runtime") from error

from repairability.deploy.runtime import vectors
from repairability.deploy.runtime.writer import LANES, Writer

_INT, _REAL = types.int64, types.float32
_WIDTHS = tuple(lanes for lanes in (16, 8, 4, 2) if lanes <= LANES)
_SIZES = {filters: range(1, largest + 1) for filters, largest in vectors.LARGEST.items()}

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiled into whatever calls it."""
    made: Function = njit(nogil=True)(function)
    return made


def cached(function: Function) -> Function:
    """Compiled once, and kept on disk."""
    made: Function = njit(nogil=True, cache=True)(function)
    return made


def _coded(function: Function) -> Function:
    coded: Function = intrinsic(function)
    return coded


def _vector_code(arguments: Any, write: Any, returns: Any = types.void) -> Any:
    """A function of one tuple for numba whose body `write(builder, items)` writes."""

    @_coded
    def function(context: Any, given: Any) -> Any:
        def code(context: Any, builder: Any, _: Any, values: Any) -> Any:
            result = write(builder, cgutils.unpack_tuple(builder, values[0]))
            return context.get_dummy_value() if result is None else result

        return returns(types.Tuple(arguments)), code

    return function


def _tiles(filters: int) -> Any:
    def write(builder: Any, values: Any) -> None:
        writer = Writer(builder)
        writer.switch(values[0], _SIZES[filters], lambda size: vectors.tile(writer, size, filters, values[1:]))

    return write


def _pools(builder: Any, values: Any) -> None:
    writer = Writer(builder)
    writer.switch(values[0], _SIZES[1], lambda size: vectors.pool(writer, size, values[1:]))


def _unzips(builder: Any, values: Any) -> None:
    """By vectors of as many numbers as the first item says."""
    writer = Writer(builder)
    writer.switch(values[0], _WIDTHS, lambda lanes: vectors.unzip(Writer(builder, lanes), *values[1:]))


_TILE = (*[_INT] * 11, _REAL, _REAL)
sparse_tile = _vector_code(_TILE, _tiles(1))
dense_tile = _vector_code(_TILE, _tiles(vectors.SHARED))
single_row = _vector_code(_TILE[1:], lambda b, v: vectors.tile(Writer(b, 1), 1, 1, v))
pool_tile = _vector_code((*[_INT] * 5, _REAL), _pools)
total = _vector_code((_INT, _INT), lambda b, v: vectors.total(Writer(b), *v), _REAL)
unzip = _vector_code([_INT] * 5, _unzips)
turn = _vector_code([_INT] * 4, lambda b, v: vectors.turn(Writer(b), *v))
meet = _vector_code((_INT, _INT), lambda b, v: vectors.meet(Writer(b), *v))
