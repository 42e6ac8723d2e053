"""The verb finetune: the trained network that pruning starts from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from repairability._files import write_atomically
from repairability.cli.options import (
    AsJson,
    DataName,
    Device,
    ImageSize,
    ModelName,
    NumClasses,
    Root,
    Seed,
    Threads,
    WeightsFile,
    device_of,
    notices,
    print_json,
    print_line,
    print_table,
    read_data,
    use_threads,
)
from repairability.errors import InputError
from repairability.models import create_model
from repairability.training import Epoch, TrainConfig, finetune

NOTHING = "none"


def finetune_verb(
    model: ModelName,
    data: DataName,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The trained weights (.safetensors).")],
    weights: WeightsFile = None,
    num_classes: NumClasses = None,
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the training part.")] = TrainConfig.epochs,
    rate: Annotated[float, typer.Option("--rate", help="Peak of the one-cycle schedule.")] = TrainConfig.rate,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images per step.")] = TrainConfig.batch_size,
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            "--freeze",
            metavar="GLOB",
            help=f"Modules that stay as they are (repeatable), or {NOTHING}. Default: the lower layers.",
        ),
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Random weights by --seed; nothing is frozen.")
    ] = False,
    augment: Annotated[
        bool, typer.Option("--augment/--no-augment", help="Shift by up to an eighth and flip, image by image.")
    ] = True,
    image_size: ImageSize = None,
    evaluate_on: Annotated[
        int, typer.Option("--evaluate", metavar="N", help="Test images to look at after each epoch, drawn by --seed.")
    ] = TrainConfig.test_images,
    half: Annotated[bool, typer.Option("--half", help="Store float16: half the file.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew where an earlier run left FILE.partial.")
    ] = False,
    seed: Seed = 0,
    root: Root = Path("data"),
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train MODEL on labeled data, from ImageNet's or other weights or from scratch: what pruning starts from.

    The head is new where the classes are others. The lower layers stay frozen, their BatchNorm in eval mode: stem,
    layer1 and layer2 of a ResNet, the first two stages of a VGG. One-cycle SGD, five epochs. After each epoch the state
    goes to FILE.partial, and the same command continues from there. At the end FILE holds the weights (for --weights of
    the other verbs) and a .json beside it the learning curve.
    Example: repairability finetune resnet18 --weights imagenet --data cifar100 --image-size 64 --out net.safetensors
    """
    use_threads(threads)
    if bool(weights) == from_scratch:
        given = "both were given" if weights else "neither was given"
        raise InputError(f"give either --weights FILE (or imagenet) or --from-scratch; {given}")
    if from_scratch and freeze not in (None, [NOTHING]):
        raise InputError("--from-scratch freezes nothing; leave out --freeze")
    if out.suffix != ".safetensors":
        raise InputError(f"--out takes a name that ends in .safetensors, not {out}")
    if not out.parent.is_dir():
        raise InputError(f"cannot write {out}: there is no folder {out.parent}")
    config = TrainConfig(
        epochs=epochs,
        rate=rate,
        batch_size=batch_size,
        seed=seed,
        frozen=() if from_scratch or freeze == [NOTHING] else freeze,
        augment=augment,
        test_images=evaluate_on,
    )
    source = read_data(data, root, image_size)
    classes = source.classes if num_classes is None else num_classes
    if classes < source.classes:
        raise InputError(f"--num-classes {classes} is too few: {source.name} has {source.classes} classes")
    with notices.status(f"building {model}"):
        net = create_model(model, num_classes=classes, weights=weights, new_head=True, seed=seed).to(device_of(device))
    partial = Path(f"{out}.partial")
    if restart:
        partial.unlink(missing_ok=True)

    def watch(epoch: Epoch) -> None:
        top1 = "" if epoch.test_top1 is None else f", test top-1 {epoch.test_top1:.4f}"
        _say(f"epoch {epoch.epoch} of {epochs}: train loss {epoch.train_loss:.4f}{top1}, {epoch.seconds:.0f} s")

    try:
        result = finetune(net, source, config=config, partial=partial, watch=watch)
    except KeyboardInterrupt:
        if partial.is_file():
            _say(f"{partial} holds the last whole epoch; the same command continues from it")
        raise
    result.save(out, half=half)
    about = {"model": model, "data": source.name, "weights": weights, "from_scratch": from_scratch, "half": half}
    record = {**about, "image_size": image_size, **result.to_dict(), "out": str(out)}
    write_atomically(out.with_suffix(".json"), json.dumps(record, indent=2))
    partial.unlink(missing_ok=True)
    if as_json:
        print_json(record)
        return
    print_table(result.table())
    print_line(f"wrote {out} and {out.with_suffix('.json')}")


def _say(text: str) -> None:
    notices.print(text, markup=False, highlight=False, soft_wrap=True)
