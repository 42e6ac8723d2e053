"""What is refused before any work is done: numbers that no verb can mean, places that collide, files and heads that do
not fit. Nothing heavy is imported before a check needs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from repairability.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from repairability.data import Data

LEAST = {
    **dict.fromkeys(("threads", "count", "image_size", "seeds", "samples", "batch", "workers"), 1),
    **dict.fromkeys(("seed", "limit", "evaluate", "retries", "gpus", "test_images"), 0),
}
MOST = {"threads": 1024, "seed": 2**63 - 1}
"""Numbers by the name of their option, in every verb that has it; a test compares them with the library's own."""


def check_numbers(given: Mapping[str, object]) -> None:
    """Refuse a number that no verb can mean, before any work is done."""
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if name in LEAST and value < LEAST[name]:
            raise InputError(f"{flag} must be at least {LEAST[name]}, not {value}")
        if name in MOST and value > MOST[name]:
            raise InputError(f"{flag} must be at most {MOST[name]}, not {value}")
        if not math.isfinite(value):
            raise InputError(f"{flag} must be positive and finite, not {value}")


WORDS = ("trained", "imagenet")
"""Weights that are no file."""

WRITTEN, READ = ("out", "csv", "report"), ("weights", "checkpoint", "curves", "store")
"""Options that name a place, in every verb that has them."""


def check_places(given: Mapping[str, object]) -> None:
    """Refuse that one file is written twice, or in the place of another that is read, before any work is done."""
    seen: dict[Path, str] = {}
    for name in (*READ, *WRITTEN):
        value = given.get(name)
        if not isinstance(value, (str, Path)) or (name == "weights" and value in WORDS):
            continue
        try:
            place = Path(value).resolve()
        except (OSError, ValueError, RuntimeError):  # no such place can be; the verb says so
            continue
        if name in WRITTEN and place in seen:
            raise InputError(f"--{name} and --{seen[place]} are the same, {value}: what is written needs its own place")
        seen[place] = name


def check_weights(weights: str | None) -> None:
    """A pruned model's file is no file of weights, but for a dense one by the name of such."""
    from repairability.checkpoints import DENSE, format_of

    found = None if weights is None else format_of(weights)
    if found is None or (found == DENSE and str(weights).endswith(".safetensors")):
        return
    raise InputError(
        f"{weights} is a pruned checkpoint of ours ({found}): give it as --checkpoint, to evaluate, export or "
        f"accelerate; for --weights make a plain file of it: repairability compress {weights} --format dense --out "
        "NAME.safetensors"
    )


def check_classes(model: nn.Module, data: Data, name: str) -> None:
    """An output [n, classes] of other classes than the data's is a mistake worth naming before any work is done."""
    from torch import Tensor

    from repairability._torch import evaluating
    from repairability.network.batches import run, to_model

    images = data.test.images([*range(min(2, len(data.test)))])
    with evaluating(model) as network:
        output = run(network, to_model(images, network))
    if isinstance(output, Tensor) and output.dim() == 2 and output.shape[1] != data.classes:
        raise InputError(
            f"{name} has {output.shape[1]} outputs, {data.name} has {data.classes} classes; "
            f"say --num-classes {data.classes} and give weights that fit"
        )
