"""The verb finetune: the trained network that pruning starts from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from typer import Option

import repairability as rp
from repairability._files import check_file
from repairability.cli import options
from repairability.cli.output import Answer, notices, write_json
from repairability.errors import InputError

if TYPE_CHECKING:
    from repairability.training import Epoch

NOTHING = "none"


@dataclass(frozen=True)
class Schedule:
    """What `TrainConfig` takes; a test compares the defaults."""

    panel: ClassVar[str] = "Training"
    epochs: int = Option(5, help="Passes over the training part.")
    rate: float = Option(0.05, help="Peak of the one-cycle schedule.")
    batch_size: int = Option(128, help="Images per step.")
    augment: bool = Option(True, help="Shift by up to an eighth and flip, image by image.")
    test_images: int = Option(
        2000, "--evaluate", metavar="N", help="Test images to look at after each epoch, drawn by --seed."
    )
    precision: Literal["float32", "bfloat16"] = Option(
        "float32", help="Of the training passes; bfloat16 takes about half the time on a new CPU."
    )


def verb(
    network: options.Network,
    source: options.DataSource,
    machine: options.Machine,
    schedule: Schedule,
    out: Path = Option(..., metavar="FILE", help="The trained weights (.safetensors)."),
    freeze: list[str] | None = Option(
        None, metavar="GLOB", help=f"Modules left as they are (repeatable), or {NOTHING}. Default: the lower layers."
    ),
    from_scratch: bool = Option(False, "--from-scratch", help="Random weights by --seed; nothing is frozen."),
    half: bool = Option(False, "--half", help="Store float16: half the file."),
    restart: bool = Option(False, "--restart", help="Begin anew where an earlier run left FILE.partial."),
    seed: int = options.SEED,
) -> Answer:
    """Train MODEL on labeled data, from ImageNet's or other weights or from scratch: what pruning starts from.

    The head is new where the classes are others. The lower layers stay frozen, their BatchNorm in eval mode: stem,
    layer1 and layer2 of a ResNet, the first two stages of a VGG. One-cycle SGD, five epochs. After each epoch the state
    goes to FILE.partial, and the same command continues from there. At the end FILE holds the weights (for --weights of
    the other verbs) and a .json beside it the learning curve.

    Example: repairability finetune resnet18 --weights imagenet --data cifar100 --image-size 64 --out net.safetensors
    """
    from repairability.models.weights import state_bytes

    _check(network.weights, from_scratch, freeze, out)
    frozen = () if from_scratch or freeze == [NOTHING] else freeze or None
    config = rp.training.TrainConfig(seed=seed, frozen=frozen, **vars(schedule))
    device, data = machine.ready(), source.read()
    data.check_labels("finetune")
    classes = data.classes if network.num_classes is None else network.num_classes
    if classes < data.classes:
        raise InputError(f"--num-classes {classes} is too few: {data.name} has {data.classes} classes")
    model = network.create(classes, seed, new_head=True)
    partial = _partial(out)
    check_file(partial, 2 * state_bytes(model))  # and the result beside it
    if restart:
        partial.unlink(missing_ok=True)

    def watch(epoch: Epoch) -> None:
        top1 = "" if epoch.test_top1 is None else f", test top-1 {epoch.test_top1:.4f}"
        seconds = f"{epoch.seconds:.0f} s"
        notices.say(f"epoch {epoch.epoch} of {config.epochs}: train loss {epoch.train_loss:.4f}{top1}, {seconds}")

    try:
        result = rp.training.finetune(model.to(device), data, config=config, partial=partial, watch=watch)
    except KeyboardInterrupt:
        if partial.is_file():
            notices.say(f"{partial} holds the last whole epoch; the same command continues from it")
        raise
    result.save(out, half=half)
    about = {"model": network.model, "data": data.name, "weights": network.weights, "from_scratch": from_scratch}
    record = {**about, "half": half, "image_size": source.image_size, **result.to_dict(), "out": str(out)}
    write_json(out.with_suffix(".json"), record)
    partial.unlink(missing_ok=True)
    return Answer(record, [result.table(), f"wrote {out} and {out.with_suffix('.json')}"])


def _check(weights: str | None, from_scratch: bool, freeze: list[str] | None, out: Path) -> None:
    """Whatever can be refused is refused before anything is read."""
    if bool(weights) == from_scratch:
        given = "both were given" if weights else "neither was given"
        raise InputError(f"give either --weights FILE (or imagenet) or --from-scratch; {given}")
    if from_scratch and freeze and freeze != [NOTHING]:
        raise InputError("--from-scratch freezes nothing; leave out --freeze")
    if out.suffix != ".safetensors":
        raise InputError(f"--out takes a name that ends in .safetensors, not {out}")
    for file in (out, _partial(out), out.with_suffix(".json")):
        check_file(file)


def _partial(out: Path) -> Path:
    return Path(f"{out}.partial")
