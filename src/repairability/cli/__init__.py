"""The command line: one short function per verb; parses, calls public functions, prints."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import typer

from repairability.cli import learn, locate, measure, plan, show, studies
from repairability.cli.options import note, notices
from repairability.errors import RepairabilityError

app = typer.Typer(
    name="repairability",
    help="Post-training pruning at very high sparsity: no labels, no gradients, no retraining.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def ending_well(verb: Callable[..., None]) -> Callable[..., None]:
    """Errors of ours end in one line on standard error and exit code 2, Ctrl-C in 130; warnings become notes."""

    @functools.wraps(verb)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)
                warnings.showwarning = _notice
                verb(*args, **kwargs)
        except RepairabilityError as error:
            notices.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            notices.print("interrupted; no file is half-written", style="red")
            raise SystemExit(130) from None

    return run


def _notice(message: Warning | str, *_: Any, **__: Any) -> None:
    note(message)


app.command("layers")(ending_well(plan.layers_verb))
app.command("allocate")(ending_well(plan.allocate_verb))
app.command("diagnose")(ending_well(measure.diagnose_verb))
app.command("prune")(ending_well(measure.prune_verb))
app.command("detect")(ending_well(locate.detect_verb))
app.command("evaluate")(ending_well(measure.evaluate_verb))
app.command("finetune")(ending_well(learn.finetune_verb))
app.command("sweep")(ending_well(studies.sweep_verb))
app.command("demo")(ending_well(show.demo_verb))
app.command("report")(ending_well(show.report_verb))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    app(args=arguments, prog_name="repairability")
