"""One base error and its few leaves; every message repeats the caller's own words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RepairabilityError(Exception):
    """Base of every error this package raises on purpose; the command line turns it into exit code 2."""


class InputError(RepairabilityError, ValueError):
    """An argument, a model or a file does not say what it must say."""


class PlaceError(InputError):
    """The machine fails, not what was asked of it: a full disk, a device that is not there. Elsewhere, or later, the
    same would do.
    """


class UnknownError(InputError, KeyError):
    """A name nobody knows; also a KeyError, so that mappings keep their manners."""

    __str__ = Exception.__str__  # KeyError would quote the whole message


class BudgetError(RepairabilityError, ValueError):
    """The sparsity asked for cannot be reached; the message says what can."""


class MissingExtraError(RepairabilityError, ImportError):
    """An optional dependency is absent; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'repairability[{extra}]'")


_MACHINE = ("out of memory", "can't allocate memory", "CUDA error", "No space left on device")
"""What torch's errors say, which are RuntimeErrors, where the machine is meant."""


_LONGEST = 200


def of_the_place(error: BaseException) -> bool:
    """Whether an error, or what it came from, says something of the machine and nothing of what was asked.

    An OSError of the system has a number; without one it is a library's word for content that it cannot read.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (PlaceError, MissingExtraError, MemoryError)):
            return True
        if isinstance(seen, OSError) and (seen.errno is not None or type(seen).__module__.startswith("urllib")):
            return True
        if isinstance(seen, RuntimeError) and any(words in str(seen) for words in _MACHINE):
            return True
        seen = seen.__cause__
    return False


def shown(text: str) -> str:
    """A name of somebody's in a message: all of it, but not pages of it."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"


def first_line(error: BaseException) -> str:
    """What an error of somebody else says, in one line; its type where it says nothing."""
    return shown((str(error).splitlines() or [type(error).__name__])[0])


def check_whole(value: object, what: str, least: int, most: int | None = None) -> int:
    """`value` as a whole number between the two, or an error that repeats it."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"{what} must be a whole number, not {value!r}")
    number = int(value.__index__())
    if number < least:
        raise InputError(f"{what} must be at least {least}, not {number}")
    if most is not None and number > most:
        raise InputError(f"{what} must be at most {most}, not {number}")
    return number


def unknown(kind: str, given: str, known: Iterable[str]) -> UnknownError:
    """The error for a name nobody knows: near matches first, else (when few) all that is known."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=5, cutoff=0.5)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif len(names) <= 12:
        hint = f"known: {', '.join(names) or 'none'}"
    else:
        hint = f"known: {', '.join(names[:12])} and {len(names) - 12} more"
    return UnknownError(f"unknown {kind} {shown(given)!r}; {hint}")
