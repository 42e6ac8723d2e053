"""How a verb is called: its bundles of options come as single ones, it gets --json, and it ends in order."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from typer import Option
from typer.models import OptionInfo

from repairability import _interrupts
from repairability.cli.checks import check_numbers, check_places
from repairability.cli.output import Answer, note, notices, show
from repairability.errors import RepairabilityError, first_line, of_the_place

Verb = Callable[..., Answer]

INTERRUPTED = (_interrupts.CODE, "interrupted; no file is half-written")

AS_JSON = Option(False, "--json", help="Print one JSON object instead of a table.")


def as_command(verb: Verb) -> Callable[..., None]:
    """The verb as Typer reads and calls it.

    Errors of ours end in one line on standard error and exit code 2, Ctrl-C in 130; warnings become notes.
    """
    hints = get_type_hints(verb)
    bundles = {name: hints[name] for name in inspect.signature(verb).parameters if is_dataclass(hints[name])}

    def run(*, as_json: bool, **given: Any) -> None:
        said = dict(given)
        for name, bundle in bundles.items():
            given[name] = bundle(**{field.name: given.pop(field.name) for field in fields(bundle)})
        try:
            check_numbers(said)
            check_places(said)
            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)
                warnings.showwarning = lambda message, *_: note(message)
                with redirect_stdout(sys.stderr):  # what a library or a model prints is no part of the answer
                    answer = verb(**given)
                show(answer, as_json)
            code, words = answer.code, ""
        except RepairabilityError as error:
            code, words = 2, f"error: {error}"
        except KeyboardInterrupt:
            code, words = INTERRUPTED
        except Exception as error:
            if not of_the_place(error) and not _interrupts.came():
                raise
            code, words = 2, f"error: {type(error).__name__}: {first_line(error)}"
        if code == 2 and _interrupts.came():
            code, words = INTERRUPTED
        # outside the handlers: with its traceback an error lets go of what it holds, threads among it
        if words:
            notices.say(words, "red")
        raise SystemExit(code)

    paragraphs = inspect.cleandoc(verb.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)  # the terminal breaks lines
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, default, annotation in (*_spread(verb, hints), ("as_json", AS_JSON, bool))
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _spread(verb: Verb, hints: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, default and type of each parameter; a bundle's are its fields, which share a panel of the help."""
    for name, parameter in inspect.signature(verb).parameters.items():
        if not is_dataclass(hints[name]):
            yield name, parameter.default, hints[name]
            continue
        types = get_type_hints(hints[name])
        for field in fields(hints[name]):
            option: Any = copy(field.default)
            if isinstance(option, OptionInfo):
                option.rich_help_panel = hints[name].panel
            yield field.name, option, types[field.name]
