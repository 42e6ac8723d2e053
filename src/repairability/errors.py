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

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would quote the whole message


class BudgetError(RepairabilityError, ValueError):
    """The sparsity asked for cannot be reached; the message says what can."""


class MissingExtraError(RepairabilityError, ImportError):
    """An optional dependency is absent; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'repairability[{extra}]'")
        self._given = package, extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return type(self), self._given  # a worker's errors travel: pickle would call it with the message alone


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


_UNSAFE = ("weights only load failed", "weights_only", "allow_pickle", "trust_remote_code")
"""How other libraries advise to read a file so that it may run code: words that we do not repeat."""


def advises_danger(error: BaseException) -> bool:
    return any(words in str(error).lower() for words in _UNSAFE)


def first_line(error: BaseException) -> str:
    """What an error of somebody else says, in one line; its type where it says nothing. Where it advises to load what
    might run code, only that there is such a thing.
    """
    if advises_danger(error):
        return "it holds more than plain tensors and arrays, and such content might run code: it is not read"
    return shown((str(error).splitlines() or [type(error).__name__])[0])


def shown(text: str, most: int = _LONGEST) -> str:
    """A text of somebody's in a message: all of it, but not pages of it."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def safe_cause(error: BaseException) -> BaseException | None:
    """What an error of ours is raised from: the other one, but for one whose words would be repeated."""
    return None if advises_danger(error) else error


def shortened(value: object) -> str:
    """How a value from somebody's file is repeated: as it is written, and not at any length."""
    return shown(repr(value))


def check_whole(value: object, what: str, least: int, most: int | None = None) -> int:
    """`value` as a whole number between the two, or an error that repeats it."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"{what} must be a whole number, not {shortened(value)}")
    number = int(value.__index__())
    if number < least:
        raise InputError(f"{what} must be at least {least}, not {number}")
    if most is not None and number > most:
        raise InputError(f"{what} must be at most {most}, not {number}")
    return number


def first_twice(names: Iterable[str]) -> str | None:
    """The first name that was there before."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


MOST_COUNT = 2**62
"""What a file says beyond that is no count of anything."""


def whole_of(value: object, what: str, least: int = 0) -> int:
    """A count as a file says it: a whole number, as such, as a text, or as a float without a fraction."""
    digits = isinstance(value, str) and len(value) < 40 and value.strip().isdecimal()
    if digits or (isinstance(value, float) and value.is_integer()):
        value = int(value)  # type: ignore[call-overload]
    return check_whole(value, what, least, MOST_COUNT)


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
    return UnknownError(f"unknown {kind} {shortened(given)}; {hint}")
