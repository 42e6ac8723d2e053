"""What the verbs share: their options, and the ways they build models, read data and print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import nn

from repairability._files import read_text
from repairability.calibration import BN_BATCH_SIZE, BN_BATCHES, CalibrationSet
from repairability.data import DATA_SETS, Data, load_data
from repairability.diagnostics import Diagnosis
from repairability.errors import InputError
from repairability.models import create_model
from repairability.network.layers import FIRST_CONV, Layers, prunable_layers
from repairability.tables import Table
from repairability.training import TRAINED, digits_network

notices = Console(stderr=True)

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A torchvision name (resnet18), resnet20/32/44/56/110, vgg16_bn_quarter, digits, package.module:callable.",
    ),
]
WeightsFile = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="State dict (safetensors, or torch read weights-only), 'imagenet', or for digits 'trained'.",
    ),
]
NumClasses = Annotated[int | None, typer.Option("--num-classes", help="Classes of the model's head.")]
Seed = Annotated[
    int, typer.Option("--seed", help="Of random weights where none are given, and of which images are drawn.")
]
Types = Annotated[
    str, typer.Option("--types", help="Layer types, comma-separated: conv (= conv2d), conv1d, conv3d, linear.")
]
Skip = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="GLOB", help=f"Layers to leave dense (repeatable). {FIRST_CONV}: the first conv."),
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="GLOB", help="Only these layers (repeatable). Default: all.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
CsvFile = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Also write the rows as CSV.")]
DataName = Annotated[
    str,
    typer.Option(
        "--data", metavar="DATA", help=f"{', '.join(DATA_SETS)}, digits, npz:PATH or folder:PATH (see the README)."
    ),
]
Root = Annotated[Path, typer.Option("--root", help="Where torchvision's data sets lie, or are downloaded to.")]
ImageSize = Annotated[
    int | None, typer.Option("--image-size", help="Resize images to this side (bilinear, antialiased).")
]
Count = Annotated[int, typer.Option("--count", help="Calibration images for the statistics.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, mps ...")]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads. Default: torch's own choice.")]


def note(message: object) -> None:
    notices.print(f"note: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def network(
    name: str,
    weights: str | None,
    num_classes: int | None,
    seed: int = 0,
    device: str = "cpu",
    *,
    layers_only: bool = False,
) -> nn.Module:
    """Random weights are mentioned, unless only the layers are asked for: on images such a network means little."""
    if weights == TRAINED:
        if name != "digits":
            raise InputError(f"only digits is trained on the spot, not {name}; see `repairability finetune --help`")
        return digits_network(load_data("digits")).to(device_of(device))
    if weights is None and not layers_only:
        more = ", or 'trained'" if name == "digits" else ""
        note(f"{name} has random weights (seed {seed}); --weights takes a file or 'imagenet'{more}")
    with notices.status(f"building {name}"):  # silent unless standard error is a terminal
        return create_model(name, num_classes=num_classes, weights=weights, seed=seed).to(device_of(device))


def device_of(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} is not available here: {str(error).splitlines()[0]}") from error
    return device


def use_threads(threads: int | None) -> None:
    if threads is not None:
        if threads < 1:
            raise InputError(f"--threads must be at least 1, not {threads}")
        torch.set_num_threads(threads)


def layers_of(model: nn.Module, types: str, skip: list[str] | None, only: list[str] | None) -> Layers:
    return prunable_layers(model, **layer_choice(types, skip, only))


def layer_choice(types: str, skip: list[str] | None, only: list[str] | None) -> dict[str, Any]:
    return {
        "types": tuple(kind.strip() for kind in types.split(",")),
        "skip": (FIRST_CONV,) if skip is None else tuple(pattern for pattern in skip if pattern),
        "only": tuple(only) if only else ("*",),
    }


def read_data(name: str, root: Path, image_size: int | None) -> Data:
    with notices.status(f"reading {name}"):
        return load_data(name, root=root, image_size=image_size)


def draw(data: Data, count: int, seed: int, more: int = 0) -> CalibrationSet:
    """The statistics' images, as many of BatchNorm's as the training part has, and `more`; by seed, labels unread."""
    wanted = min(len(data.train), count + BN_BATCHES * BN_BATCH_SIZE + more)
    with notices.status("drawing calibration images"):
        return CalibrationSet(data.unlabeled(wanted, seed), count=count)


def check_classes(model: nn.Module, data: Data, name: str) -> None:
    """A head for other classes than the data's is a mistake worth naming before any work is done."""
    heads = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if heads and heads[-1].out_features != data.classes:
        raise InputError(
            f"{name} has {heads[-1].out_features} outputs, {data.name} has {data.classes} classes; "
            f"say --num-classes {data.classes} and give weights that fit"
        )


def sparsities(text: str, what: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{what} takes sparsities with commas between, such as 0.9,0.95, not {text!r}") from error


def read_diagnosis(file: Path | None) -> Diagnosis | None:
    return None if file is None else Diagnosis.from_json(read_text(file))


def print_table(table: Table) -> None:
    if sys.stdout.isatty():
        Console().print(table.rich())
    else:
        print(table)


def plain_table(table: Table) -> dict[str, Any]:
    """A table for --json."""
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [list(row) for row in table.rows],
        "caption": table.caption,
    }


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def print_line(text: str) -> None:
    print(text)
