"""How a verb is called: its bundles of options come as single ones, and however it ends, it ends in order."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from typer.models import OptionInfo

from repairability.cli.output import note, say
from repairability.errors import RepairabilityError

Verb = Callable[..., None]


def as_command(verb: Verb) -> Verb:
    """The verb as Typer reads and calls it.

    Errors of ours end in one line on standard error and exit code 2, Ctrl-C in 130; warnings become notes.
    """
    parameters, bundles = _spread(verb)

    def run(**given: Any) -> None:
        for name, bundle in bundles.items():
            given[name] = bundle(**{field.name: given.pop(field.name) for field in fields(bundle)})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)
                warnings.showwarning = lambda message, *_: note(message)
                verb(**given)
        except RepairabilityError as error:
            say(f"error: {error}", "red")
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            say("interrupted; no file is half-written", "red")
            raise SystemExit(130) from None

    paragraphs = inspect.cleandoc(verb.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)  # the terminal breaks lines
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _spread(verb: Verb) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    """The parameters with each bundle replaced by its fields, which share a panel of the help; and the bundles."""
    parameters: list[inspect.Parameter] = []
    bundles: dict[str, Any] = {}
    hints = get_type_hints(verb)
    for name, parameter in inspect.signature(verb).parameters.items():
        if is_dataclass(hints[name]):
            bundle = bundles[name] = hints[name]
            types = get_type_hints(bundle)
            for field in fields(bundle):
                option = copy(field.default)
                if isinstance(option, OptionInfo):
                    option.rich_help_panel = bundle.panel
                parameters.append(_parameter(field.name, option, types[field.name]))
        else:
            parameters.append(_parameter(name, parameter.default, hints[name]))
    return parameters, bundles


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
