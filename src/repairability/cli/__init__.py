"""The command line: a file per verb, named as the verb; each parses, calls public functions, answers.

Nothing heavy is imported before a verb runs, so that every `--help` opens at once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import typer

import repairability as rp
from repairability.cli import standard
from repairability.cli.calling import as_command
from repairability.cli.output import notices
from repairability.errors import PlaceError

VERBS = (
    *("doctor", "layers", "allocate", "diagnose", "prune", "detect", "evaluate", "finetune"),
    *("info", "compress", "export", "accelerate"),
    *("sweep", "list", "report", "renew", "archive", "demo"),
)

app = typer.Typer(
    name="repairability",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    if asked:
        standard.answer(f"repairability {rp.__version__}\n")
        raise SystemExit(0)


@app.callback()
def _before_the_verb(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_tell_version, help="Say it and exit."),
) -> None:
    """Post-training pruning at very high sparsity: no labels, no retraining."""


for name in VERBS:
    app.command(name)(as_command(importlib.import_module(f"repairability.cli.{name}").verb))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; as with `python -m`, what lies in the working directory can be imported."""
    standard.ready()
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        app(args=arguments, prog_name="repairability")
    except PlaceError as error:  # the version, on a full disk
        notices.say(f"error: {error}", "red")
        raise SystemExit(2) from None
    except OSError as error:  # a help page, which Typer writes, on a full disk; verbs end in order by themselves
        standard.silence(sys.stdout)
        notices.say(f"error: standard output takes nothing more: {error.strerror}", "red")
        raise SystemExit(2) from None
