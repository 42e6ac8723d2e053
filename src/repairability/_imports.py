"""Importing what a user names as `package.module:callable` or `path/to/file.py:callable`."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from repairability.errors import InputError, first_line, safe_cause, shown, unknown

_FILE = re.compile(r"(?P<file>.+\.py)(?::(?P<path>[^:]*))?", re.DOTALL)
"""The last colon counts: a drive of Windows has one too."""


def imported(name: str, what: str) -> Any:
    """The callable that `name` names in an importable module; `what` it is to be ("model") is for the messages."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise InputError(f"a {what} of your own is named package.module:callable, not {name!r}")
    with _import_errors(module_name, name, what):
        module = importlib.import_module(module_name)
    return _callable_in(module, module_name, path, name, what)


def names_a_file(name: str) -> bool:
    return _FILE.fullmatch(name) is not None


def imported_from_file(name: str, what: str) -> Any:
    """The callable that `path/to/file.py:callable` names. The file is run anew by each call, as it is then.

    Its folder heads Python's path while the file runs and while the callable does, as if it were run itself.
    """
    match = _FILE.fullmatch(name)
    if match is None or not match["path"]:
        raise InputError(f"a {what} in a file of yours is named path/to/file.py:callable, not {shown(name)!r}")
    file = Path(match["file"])
    try:
        there = file.is_file()
    except (OSError, ValueError):  # no permission; a NUL in the name
        there = False
    if not there:
        raise InputError(f"there is no file {shown(match['file'])} for the {what} {shown(name)!r}")
    folder, module = str(file.resolve().parent), _module_of(file)
    with _import_errors(match["file"], name, what), _first_on_the_path(folder):
        _AsItIs(module.__name__, str(file.resolve())).exec_module(module)
    value = _callable_in(module, match["file"], match["path"], name, what)

    @functools.wraps(value, updated=())
    def called(*arguments: Any, **options: Any) -> Any:
        with _first_on_the_path(folder):
            return value(*arguments, **options)

    return called


class _AsItIs(SourceFileLoader):
    """Reads the source each time and keeps no bytecode beside it: nothing stale, nothing written."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _module_of(file: Path) -> ModuleType:
    """A module for a file, under a name that no other has; dataclasses and pickles look for it in `sys.modules`."""
    place = file.resolve()
    name = f"{place.stem}_{hashlib.sha256(str(place).encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, place, loader=_AsItIs(name, str(place)))
    assert spec is not None  # with a loader there is one
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    return module


@contextmanager
def _first_on_the_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's code took it away
            sys.path.remove(folder)


@contextmanager
def _import_errors(source: str, name: str, what: str) -> Iterator[None]:
    """Whatever the user's own module raises, or where it wants to end the program, becomes one sentence."""
    try:
        yield
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        words = f"cannot import {shown(source)!r} for the {what} {shown(name)!r}"
        raise InputError(f"{words}: {kind}{first_line(error)}") from safe_cause(error)


def _callable_in(module: ModuleType, source: str, path: str, name: str, what: str) -> Any:
    value: Any = module
    for part in path.split("."):
        if not hasattr(value, part):
            raise unknown(f"name in {source}", path, [known for known in dir(value) if not known.startswith("_")])
        value = getattr(value, part)
    if not callable(value):
        raise InputError(f"{name!r} is not callable, so it is no {what}")
    return value
